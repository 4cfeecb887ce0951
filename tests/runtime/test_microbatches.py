"""The sums of microbatches: where they are added to, and how parts join."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.models.zoo import mlp
from torch import fx

from partita.compiler.ir.in_time import InTime
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import (
    InputKind,
    InputRole,
    OutputKind,
    OutputRole,
    op_name,
)
from partita.compiler.ir.sbp import Broadcast, Partial, Placement, Split
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.rules.table import default_rules
from partita.lowering import Lowered, capture_for
from partita.options import Options
from partita.planning import plan
from partita.runtime.executor import Executable
from partita.runtime.microbatches import Microbatches, accumulating, joined

F4 = TensorType((4,), torch.float32)
WHOLE = Placement.broadcast(1)
LOSS = OutputRole(OutputKind.LOSS, "loss")
FIRST, SECOND = (OutputRole(OutputKind.GRADIENT, name) for name in "ab")
BUFFER = OutputRole(OutputKind.MUTATED_BUFFER, "calls")


def twice_and_itself() -> LocalProgram:
    """Return ``loss, a, b, calls = 2 x, 2 x, x, x + 1``; loss and a are one tensor."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    doubled = graph.call_function(torch.ops.aten.mul.Tensor, (x, 2))
    counted = graph.call_function(torch.ops.aten.add.Tensor, (x, 1))
    graph.output((doubled, doubled, x, counted))
    joins = Partial(), Partial(), Partial(), Broadcast()
    return LocalProgram(
        fx.GraphModule(torch.nn.Module(), graph),
        (InputRole(InputKind.INPUT, "x"),),
        (LOSS, FIRST, SECOND, BUFFER),
        (F4,),
        (F4,) * 4,
        (WHOLE,),
        (WHOLE,) * 4,
        Mesh(tp=1),
        (0,),
        in_time=InTime(3, joins),
    )


def test_what_adds_up_is_added_where_it_is_made() -> None:
    local, sums = accumulating(twice_and_itself())
    assert local.outputs == (BUFFER,)
    assert [role.name for role in local.inputs] == ["x", "loss:loss", "gradient:b"]
    assert sums[LOSS] == sums[FIRST] != sums[SECOND]
    ops = [op_name(n) for n in local.graph_module.graph.nodes if n.op[:4] == "call"]
    add, count = "aten.add_.Tensor", "aten.add.Tensor"
    assert ops == [add, "aten.mul.Tensor", add, count]


def test_sums_are_of_all_microbatches_and_buffers_of_one() -> None:
    whole = Executable(twice_and_itself(), {})
    local, sums = accumulating(whole.local)
    parts = Microbatches(replace(whole, local=local), (), sums)
    key = InputKind.INPUT, "x"
    found = parts.run(lambda number: {key: torch.full((4,), 10.0**number)}, None)
    values = {
        role: value[0].item() for role, value in found.items() if value is not None
    }
    assert values == {LOSS: 222.0, FIRST: 222.0, SECOND: 111.0, BUFFER: 101.0}


def test_names_of_sums_do_not_meet_those_of_the_program() -> None:
    model, args, _ = mlp()
    options = Options(microbatches=2)
    found = plan(model, *args, mesh="tp=2", options=options)
    captured = capture_for(model, found)
    lowered = Lowered.of(captured, found, default_rules)
    local, _ = accumulating(lowered.at((0,)))
    for node in local.graph_module.graph.find_nodes(op="placeholder"):
        assert node.name == node.target


@pytest.mark.parametrize(
    ("join", "wanted"),
    [
        (Split(0), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]),
        (Split(0, (4, 4)), [0.0, 1.0, 4.0, 5.0, 2.0, 3.0, 6.0, 7.0]),
        (Partial(), [4.0, 6.0, 8.0, 10.0]),
        (Broadcast(), [4.0, 5.0, 6.0, 7.0]),
    ],
    ids=str,
)
def test_parts_join(join: Split | Partial | Broadcast, wanted: list[float]) -> None:
    first, second = torch.arange(8.0).chunk(2)
    assert joined([first, second], join).tolist() == wanted
