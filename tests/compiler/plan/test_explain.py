from dataclasses import replace

import pytest
from small_plan import UP
from tests.models.zoo import ZOO, data_parallel_pins

from partita.compiler.errors import BadOptions
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import InputKind
from partita.compiler.ir.sbp import Placement
from partita.compiler.plan.alternative import Alternative
from partita.compiler.plan.document import PlanOptions, Predicted
from partita.compiler.plan.plan import Plan
from partita.compiler.search.held import Held
from partita.options import Options
from partita.planning import plan as make_plan

OF_UP = """\
up.weight: parameter, f32[6, 10]
  node       parameter:up.weight
  placement  (B, S(1)) on dp=2,tp=2
  storage    (B, S(1))
  use        (B, S(1))
  gradient   (B, S(1))
  optimizer  (B, S(1))
  why        the cheapest for the whole step; the next best stand below

placement  cost          compute  boxings  sent   held    boxed for
---------  ------------  -------  -------  -----  ------  ---------
(B, S(1))  chosen        0 s      0 s      0 B    360 B
(B, B)     +3 us a step  -1 us    +4 us    +64 B  +120 B  up/mm/0
(S(0), B)  +8 us a step  +0 s     +8 us    +0 B   +0 B    up/mm/0

used by  placement  by  bytes  time
-------  ---------  --  -----  ----
up/mm/0  (B, S(1))"""

OF_MAX = """\
max.dim/0: aten.max.dim, f32[8], i64[8]
  from       model.py:7 in the model itself
  placement  (S(0), B) -> (S(0), B), (S(0), B) on dp=2,tp=2
  why        the plan keeps no alternative to it

placement                          cost    compute boxings sent held boxed for
---------------------------------  ------  ------- ------- ---- ---- ---------
(S(0), B) -> (S(0), B), (S(0), B)  chosen  2 us    4 us    64 B 48 B its down/mm/0

operand    placement                    by             bytes  time
---------  ---------------------------  -------------  -----  ----
down/mm/0  (S(0), P(sum)) -> (S(0), B)  all_reduce tp  64 B   4 us

used by                 placement  by  bytes  time
----------------------  ---------  --  -----  ----
output:best (result 1)  (S(0), B)"""


def test_parameter_is_explained_by_its_alternatives(plan: Plan) -> None:
    assert plan.explain("up.weight") == OF_UP


def test_alternatives_say_how_a_parameter_is_updated(plan: Plan) -> None:
    node, whole = plan.nodes[UP], Placement.parse("(B, S(1))")
    split = Placement.parse("(S(0), S(1))")
    others = [
        replace(node.alternatives[0], signature=node.signature, held=held)
        for held in (Held(split, split), Held(whole, split), Held(whole, whole))
    ]
    nodes = {**plan.nodes, UP: replace(node, alternatives=tuple(others))}
    found = replace(plan, nodes=nodes).explain("up.weight").splitlines()
    rows = [line.partition("  +3 us")[0].rstrip() for line in found if "+3 us" in line]
    assert rows == [
        "(B, S(1)), updated as (S(0), S(1))",
        "(B, S(1)), reduced to (B, S(1)), updated as (S(0), S(1))",
        "(B, S(1))",
    ]


def test_node_is_explained_with_its_boxings(plan: Plan) -> None:
    found = plan.explain("max.dim/0").splitlines()
    wanted = OF_MAX.splitlines()
    assert [line.split() for line in found if "---" not in line] == [
        line.split() for line in wanted if "---" not in line
    ]


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("x", "x: input, f32[8, 6]"),
        ("loss:loss", "loss:loss: aten.mean.default, f32[]"),
        ("loss", "loss: aten.mean.default, f32[]"),
        ("gradient:up.weight", "gradient:up.weight: aten.mm.default, f32[6, 10]"),
        ("mean/0 -> (B, B)", "mean/0 -> (B, B): boxing of f32[]"),
    ],
)
def test_every_name_in_the_plan_can_be_asked_for(
    plan: Plan, name: str, first: str
) -> None:
    assert plan.explain(name).splitlines()[0] == first


def test_tied_parameter_is_found_by_its_other_name(plan: Plan) -> None:
    tied = replace(plan.parameters["up.weight"], aliases=("head.weight",))
    text = replace(plan, parameters={**plan.parameters, "up.weight": tied}).explain(
        "head.weight"
    )
    assert "  tied to    head.weight" in text.splitlines()
    assert text.startswith("head.weight: parameter, f32[6, 10]\n  node       param")


def test_parameter_outside_the_graph_is_said_to_be_unused(plan: Plan) -> None:
    spare = plan.parameters["up.weight"]
    text = replace(plan, parameters={**plan.parameters, "spare": spare}).explain(
        "spare"
    )
    assert text.splitlines()[0] == "spare: not used by the program"


def test_input_that_has_the_name_of_a_parameter_is_held_as_none(plan: Plan) -> None:
    (name,) = (
        n.role.name
        for n in plan.nodes.values()
        if n.role and n.role.kind is InputKind.INPUT
    )
    like = {**plan.parameters, name: plan.parameters["up.weight"]}
    text = replace(plan, parameters=like).explain(f"input:{name}")
    assert "  optimizer  " not in text


def test_pin_is_the_reason(plan: Plan) -> None:
    options = PlanOptions(pins={"up.weight": "(B, S(1))"})
    pinned = replace(plan, options=options)
    why = "  why        pinned to (B, S(1)) by 'up.weight'"
    assert why in pinned.explain("up.weight").splitlines()
    assert why in pinned.explain(UP).splitlines()


def test_limit_of_memory_is_told(plan: Plan) -> None:
    limited = replace(plan, options=PlanOptions(memory_bytes=4096))
    line = "  limit      4 KiB on a rank, 2 KiB predicted"
    assert line in limited.explain("up.weight").splitlines()


def test_price_of_memory_is_told_and_explains(plan: Plan) -> None:
    node = plan.nodes[UP]
    better = replace(node.alternatives[0], seconds=-2e-6, held_bytes=3 << 20)
    limited = replace(
        plan,
        nodes={**plan.nodes, UP: replace(node, alternatives=(better,))},
        options=PlanOptions(memory_bytes=4096),
        search=replace(plan.search, memory_price=1e-12),
    )
    lines = limited.explain(UP).splitlines()
    assert "  room       1 MiB more on a rank would save about 1.05 us a step" in lines
    at = next(i for i, line in enumerate(lines) if "would gain 2 us" in line)
    assert lines[at + 1].strip() == "but hold 3 MiB more, which are worth 3.15 us"


def test_better_alternative_is_admitted(plan: Plan) -> None:
    node = plan.nodes[UP]
    better = replace(node.alternatives[0], seconds=-2e-6)
    other = replace(
        plan,
        nodes={**plan.nodes, UP: replace(node, alternatives=(better,))},
        search=replace(plan.search, status="time-limit"),
        predicted=Predicted(1.0, 1),
    )
    text = other.explain("up.weight")
    assert "another would gain 2 us by itself (search: time-limit)" in text
    assert "-2 us a step" in text


def test_what_rounding_leaves_is_no_better_alternative(plan: Plan) -> None:
    node = plan.nodes[UP]
    equal = replace(node.alternatives[0], seconds=-5e-20)
    nodes = {**plan.nodes, UP: replace(node, alternatives=(equal,))}
    text = replace(plan, nodes=nodes).explain("up.weight")
    assert "  why        the cheapest for the whole step" in text


@pytest.mark.parametrize("of", ["producer", "parameter"])
def test_what_shares_a_message_says_so_beside_a_better_alternative(of: str) -> None:
    model, args, kwargs = built = ZOO["mlp"]()
    options = Options(pins=data_parallel_pins(built, 1))
    found = make_plan(model, *args, mesh=Mesh(dp=2), options=options, **kwargs)
    producer = next(b.producer for b in found.boxings if "up/addmm/0~grad/mm" in b.key)
    (bucket,) = found.buckets
    key = producer if of == "producer" else "parameter:up.weight"
    node = found.nodes[key]
    better = Alternative(node.signature, -2e-6)
    nodes = {**found.nodes, key: replace(node, alternatives=(better,))}
    unpinned = replace(found, nodes=nodes, options=PlanOptions())
    lines = unpinned.explain(key).splitlines()
    at = next(i for i, line in enumerate(lines) if "would gain 2 us" in line)
    sent = lines[at + 1].strip()
    assert sent.startswith(f"but is sent with {len(bucket) - 1} others: ")
    assert sent.endswith(" one by one")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "upweight",
            "the plan has no parameter, input or node 'upweight'; close to it: "
            "up.weight, down.weight, gradient:up.weight",
        ),
        ("qqqq", "the plan has no parameter, input or node 'qqqq'"),
        ("", "the plan has no parameter, input or node ''"),
    ],
)
def test_unknown_name_is_met_with_those_close_to_it(
    plan: Plan, name: str, message: str
) -> None:
    with pytest.raises(BadOptions) as caught:
        plan.explain(name)
    assert str(caught.value) == message
