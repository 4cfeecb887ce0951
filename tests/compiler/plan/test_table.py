from dataclasses import replace

from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.plan.document import Predicted
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.search_result import SearchResult
from partita.compiler.plan.stage_records import Schedule, Stage, Transfer, TransferKind
from partita.compiler.plan.stages import mesh_text
from partita.compiler.plan.table import format_table, print_tables, title

SMALL = """\
model.TwoLayers on mesh dp=2,tp=2: 4 ranks, hardware by hand, training
step    36 us predicted (communication 20 us, compute 16 us)
memory  2 KiB a rank predicted (activations 1.5 KiB, parameters 512 B)
split   100.0% of the flops over all ranks
whole   0.0% of the compute time is of ops that several ranks repeat
search  highs: optimal, gap 0.00%, 250 ms

parameter        type        storage    use   gradient  optimizer
-----------  --  ----------  ---------  ----  --------  ---------
up.weight    x1  f32[6, 10]  (B, S(1))  same  same      same
down.weight  x1  f32[10, 4]  (B, S(0))  same  same      same

collective  axis  count  payload of a rank
----------  ----  -----  -----------------
all_reduce  dp    3      192 B
all_reduce  tp    1      64 B

boxing of                 from -> to                   by             bytes  time  for
"""


ROWS = Placement.parse("(S(0), B)")


def test_plan_prints_as_tables(plan: Plan) -> None:
    text = str(plan)
    assert text.startswith(SMALL)
    (line,) = (line for line in text.splitlines() if line.startswith("mean/0  "))
    assert line.split()[-1] == "loss:loss"
    assert text.endswith("aten.max.dim  1      0 s   no rule: replicated")


def test_a_plan_is_shown_in_a_line(plan: Plan) -> None:
    assert repr(plan) == f"<Plan of {str(plan).splitlines()[0]}>"


def test_repeated_blocks_take_one_line(plan: Plan) -> None:
    one = plan.parameters["up.weight"]
    many = {f"h.{i}.up.weight": one for i in range(12)} | {"h.12.up.weight": one}
    other = replace(one, shape=(6, 12))
    text = str(replace(plan, parameters={**many, "h.13.up.weight": other}))
    lines = [line.split()[:2] for line in text.splitlines() if "up.weight" in line][:2]
    assert lines == [["h.*.up.weight", "x13"], ["h.13.up.weight", "x1"]]


def test_only_the_slowest_boxings_are_listed(plan: Plan) -> None:
    text = print_tables(plan, most_rows=2)
    assert "... and 3 more kinds, all of them quicker" in text


def test_empty_parts_are_left_out(plan: Plan) -> None:
    empty = replace(
        plan,
        parameters={},
        boxings=(),
        collectives=(),
        reported=(),
        predicted=Predicted(0.0, 0),
        search=SearchResult("fixed", "given", None, 0.0),
    )
    assert str(empty).splitlines()[1:] == [
        "step    0 s predicted",
        "memory  0 B a rank predicted",
        "split   100.0% of the flops over all ranks",
        "whole   0.0% of the compute time is of ops that several ranks repeat",
        "search  fixed: given, gap unknown, 0 s",
        "",
        "no collectives",
    ]


def test_what_room_is_worth_is_told_where_a_limit_binds(plan: Plan) -> None:
    bound = replace(plan.search, memory_price=1e-12)
    text = str(replace(plan, search=bound))
    assert "room    1 MiB more on a rank would save about 1.05 us a step" in text
    assert "room" not in str(replace(plan, search=replace(bound, memory_price=0.0)))


def test_stages_are_named_when_there_are_several(plan: Plan) -> None:
    stages = (*plan.stages, Stage(plan.mesh, (4, 5, 6, 7), ()))
    schedule = Schedule("1f1b", (0, 1), ("", ""), (2, 1))
    transfer = Transfer(TransferKind.FORWARD, "up/mm/0", 0, 1, ROWS, ROWS, 64, 1e-3)
    text = str(replace(plan, stages=stages, schedule=schedule, transfers=(transfer,)))
    assert "stages  2, schedule 1f1b, 1 microbatches" in text
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "1 4-7 dp=2,tp=2 0 0 s 1" in lines
    assert "0 -> 1 forward (S(0), B) -> (S(0), B) x1 64 B 1 ms" in lines


def test_meshes_of_unlike_stages_are_told_one_by_one(plan: Plan) -> None:
    (stage,) = plan.stages
    other = Stage(Mesh(tp=2), (4, 5), ())
    unlike = replace(plan, stages=(stage, other, other), mesh=Mesh(rank=8))
    assert mesh_text(unlike) == f"{stage.mesh} (1 stage), tp=2 (2 stages)"
    assert mesh_text(replace(unlike, stages=(stage,))) == "rank=8"
    assert title(unlike).startswith("model.TwoLayers on mesh dp=2,tp=2 (1 stage), ")


def test_names_cannot_steer_the_terminal(plan: Plan) -> None:
    one = plan.parameters["up.weight"]
    text = str(replace(plan, parameters={"a\x1b[2J\n": one, "\ud800": one}))
    assert "a\\x1b[2J\\n" in text
    assert text.replace("\n", "").isprintable()
    assert format_table(("a", "b"), [("1", "\t")]) == "a  b\n-  --\n1  \\t"
