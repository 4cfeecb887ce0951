"""An op that raises on a rank is named with the user's line."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import fx, nn

from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import (
    InputKind,
    InputRole,
    NodeInfo,
    OutputKind,
    OutputRole,
    Phase,
    set_info,
)
from partita.runtime.executor import bind_program
from partita.runtime.groups import Groups

aten = torch.ops.aten


def looked_up() -> LocalProgram:
    """Return a program that looks rows of ones up by its input."""
    graph = fx.Graph()
    ids = graph.placeholder("ids")
    table = graph.call_function(aten.ones.default, ([4, 2],))
    rows = graph.call_function(aten.embedding.default, (table, ids))
    graph.output((graph.call_function(aten.relu.default, (rows,)),))
    set_info(table, NodeInfo("ones/0", Phase.FORWARD, ()))
    source = "model.py:7"
    set_info(rows, NodeInfo("e/embedding/0", Phase.FORWARD, (), source=source))
    return LocalProgram(
        graph_module=fx.GraphModule(nn.Module(), graph),
        inputs=(InputRole(InputKind.INPUT, "ids"),),
        outputs=(OutputRole(OutputKind.OUTPUT, "y"),),
        input_types=(None,),
        output_types=(None,),
        input_placements=(None,),
        output_placements=(None,),
        mesh=Mesh(tp=1),
        coordinates=(0,),
    )


def test_the_node_is_told_with_its_source() -> None:
    local = looked_up()
    groups = Groups(local.mesh, (0,), torch.device("cpu"), cast(Any, None), {})
    program = bind_program(local, groups)
    with pytest.raises(IndexError) as caught:
        program.run({(InputKind.INPUT, "ids"): torch.tensor([9])})
    assert caught.value.__notes__ == ["at 'e/embedding/0' (model.py:7), forward"]


def test_what_is_raised_outside_of_nodes_is_left_as_it_is() -> None:
    program = bind_program(
        looked_up(), Groups(Mesh(tp=1), (0,), torch.device("cpu"), cast(Any, None), {})
    )
    with pytest.raises(StopIteration) as caught:
        program.compute([])
    assert not hasattr(caught.value, "__notes__")
