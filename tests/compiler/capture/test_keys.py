"""Keys, modules, lines and phases; keys outlive edits elsewhere."""

from __future__ import annotations

from tests.compiler.capture import small_models as small
from tests.models import zoo
from tests.models.captured import captured
from torch import fx, nn

from partita.compiler.capture.capture import capture
from partita.compiler.capture.keys import find_frames, source_line, user_frames
from partita.compiler.ir.program import Phase, Program, info, op_name


def program_of(model: nn.Module) -> Program:
    return capture(model, (small.batch(),), {}).program


def keys(program: Program) -> list[str]:
    return [info(node).key for node in program.nodes()]


def test_keys_are_path_op_ordinal() -> None:
    assert keys(program_of(small.Scale())) == [
        "parameter:w",
        "input:x",
        "loss-scale:loss_scale",
        "mul.Tensor/0",
        "sum/0",
        "sum/0~grad/expand/0",
        "mul.Tensor/0~grad/mul.Tensor/0",
        "mul.Tensor/0~grad/sum.dim_IntList/0",
        "mul.Tensor/0~grad/view/0",
    ]


def test_keys_are_unique_and_survive_a_second_capture() -> None:
    (model, args, kwargs), found = captured("gpt2")
    first, second = keys(found.program), keys(capture(model, args, kwargs).program)
    assert first == second
    assert len(set(first)) == len(first)


def test_other_keys_stay_when_a_block_comes_between() -> None:
    few = {info(n).key: op_name(n) for n in program_of(small.Chain("a", "c")).nodes()}
    many = {
        info(n).key: op_name(n) for n in program_of(small.Chain("a", "b", "c")).nodes()
    }
    own = {key for key in many if "blocks.b" in key}
    # The root adds one more residual; its last ordinals are new, the others stay.
    new = {key for key in many.keys() - few.keys() - own}
    assert {key.rpartition("/")[0].split("~")[0] for key in new} <= {"add.Tensor"}
    assert {key: many[key] for key in few} == few


def test_keys_of_gpt2_stay_when_a_layer_is_added() -> None:
    one, two = (capture(*zoo.gpt2(layers)).program for layers in (1, 2))
    described = [
        {
            info(node).key: (op_name(node), info(node).types, info(node).phase)
            for node in program.nodes()
        }
        for program in (one, two)
    ]
    assert {key: described[1].get(key) for key in described[0]} == described[0]
    added = described[1].keys() - described[0].keys()
    assert all(
        key.removeprefix("parameter:").startswith("transformer.h.1") for key in added
    )


def test_calls_of_one_module_share_its_path() -> None:
    program = program_of(small.Twice())
    forward = [n for n in program.calls() if info(n).phase is Phase.FORWARD]
    assert [info(n).key for n in forward if op_name(n) == "aten.addmm.default"] == [
        "lin/addmm/0",
        "lin/addmm/1",
    ]
    assert {info(n).module for n in forward} == {"lin", ""}


def test_backward_nodes_stand_in_the_module_of_their_forward() -> None:
    program = program_of(small.Chain("a"))
    for node in program.calls():
        fact = info(node)
        if "~grad" in fact.key and fact.module:
            assert fact.key.startswith(fact.module)
    modules = {info(n).module for n in program.calls() if "~grad" in info(n).key}
    assert {"blocks.a.0", "blocks.a.1"} <= modules


def test_lines_are_the_users_own() -> None:
    program = program_of(small.Twice())
    here = "tests/compiler/capture/small_models.py"
    line = small.line_of(small.Twice, "self.lin(torch.tanh").rpartition(":")[2]
    for node in program.calls():
        if info(node).key not in ("view/0", "view/0~grad/view/0"):  # made by capture
            assert info(node).source == f"{here}:{line}", info(node).key


def test_phases() -> None:
    program = program_of(small.Chain("a"))
    phases = {info(n).key: info(n).phase for n in program.calls()}
    assert phases["blocks.a.1/addmm/0"] is Phase.FORWARD
    products = {
        key: phase
        for key, phase in phases.items()
        if key.startswith("blocks.a.1/addmm/0~grad/mm")
    }
    assert products == {
        "blocks.a.1/addmm/0~grad/mm/0": Phase.BACKWARD_INPUT,
        "blocks.a.1/addmm/0~grad/mm/1": Phase.BACKWARD_WEIGHT,
    }


TRACE = """Traceback
  File "/home/me/model.py", line 7, in forward
    y = layer(x)
  File "{torch}", line 9, in forward
    return F.linear(x)
  File "<eval_with_key>.3", line 1, in forward
"""


def test_frames_of_torch_and_of_generated_code_are_skipped() -> None:
    trace = TRACE.format(torch=nn.__file__)
    frames = find_frames(trace)
    assert [line for _, line in frames] == ["7", "9", "1"]
    assert user_frames(frames) == [("/home/me/model.py", "7")]
    node = fx.Graph().placeholder("x")
    node.meta["stack_trace"] = trace
    assert source_line(node) == "model.py:7"
    node.meta["stack_trace"] = None
    assert source_line(node) == ""
