from typing import Any, cast

import pytest
import torch
from local_programs import local_mlp
from torch import fx, nn

from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import (
    NodeInfo,
    OutputKind,
    OutputRole,
    Phase,
    op_name,
    set_info,
)
from partita.compiler.ir.tensor_type import TensorType
from partita.runtime.compilation import Compilation
from partita.runtime.executor import bind_program, only, without_outputs
from partita.runtime.groups import Groups
from partita.runtime.virtual import run_all


def num_collectives(local: LocalProgram) -> int:
    nodes = local.graph_module.graph.nodes
    return sum("all_reduce" in op_name(node) for node in nodes)


def test_without_gradients_the_backward_falls_away() -> None:
    whole = local_mlp(Mesh(dp=2, tp=2), (0, 0))
    forward = only(whole, (OutputKind.LOSS, OutputKind.MUTATED_BUFFER))
    assert [role.name for role in forward.outputs] == ["loss", "steps"]
    assert (num_collectives(whole), num_collectives(forward)) == (5, 2)
    assert forward.inputs == whole.inputs
    assert num_collectives(only(whole, (OutputKind.OUTPUT,))) == 1


def test_a_step_has_none_of_the_outputs_that_leave_as_they_are_made() -> None:
    whole = local_mlp(Mesh(dp=2, tp=2), (0, 0))
    step = without_outputs(whole)
    assert step.outputs == whole.outputs[:-1]
    assert step.output_types == whole.output_types[:-1]
    assert num_collectives(step) == num_collectives(whole)
    (output,) = whole.graph_module.graph.find_nodes(op="output")
    y = output.args[0][-1]
    for key, leaves in (("mul/0", False), ("mul/0#0 -> (B,)", True)):
        set_info(y, NodeInfo(key, Phase.FORWARD, ()))
        assert (without_outputs(whole).outputs == whole.outputs) is leaves


def made_of(graph: fx.Graph) -> LocalProgram:
    """Return the program of one rank that makes an output alone."""
    return LocalProgram(
        graph_module=fx.GraphModule(nn.Module(), graph),
        inputs=(),
        outputs=(OutputRole(OutputKind.OUTPUT, "y"),),
        input_types=(),
        output_types=(None,),
        input_placements=(),
        output_placements=(None,),
        mesh=Mesh(tp=1),
        coordinates=(0,),
    )


def test_tensors_are_made_on_the_device_of_the_run() -> None:
    graph = fx.Graph()
    make = torch.ops.aten.ones.default
    graph.output((graph.call_function(make, ([2],), {"device": torch.device("cpu")}),))
    local = made_of(graph)
    groups = Groups(local.mesh, (0,), torch.device("meta"), cast(Any, None), {})
    (y,) = bind_program(local, groups).run({})
    assert y is not None
    assert y.is_meta
    ((y,),) = run_all([local], [{}], device=torch.device("meta"))
    assert y is not None
    assert y.is_meta


@pytest.mark.parametrize(
    ("device", "compilation", "name"),
    [
        ("cpu", Compilation.EAGER, "partita.mm_by_columns.default"),
        ("cpu", Compilation.REGIONS, "partita.mm_by_columns.default"),
        ("cpu", Compilation.WHOLE, "aten.mm.default"),  # see aligned_rows.py
        ("meta", Compilation.EAGER, "aten.mm.default"),
    ],
)
def test_large_unaligned_products_are_made_by_columns_on_a_cpu(
    device: str, compilation: Compilation, name: str
) -> None:
    graph = fx.Graph()
    fill = torch.ops.aten.ones.default
    x, y = (graph.call_function(fill, (size,)) for size in ([256, 2], [2, 1027]))
    product = graph.call_function(torch.ops.aten.mm.default, (x, y))
    type_ = TensorType((256, 1027), torch.float32)
    set_info(product, NodeInfo("mm/0", Phase.FORWARD, (type_,)))
    graph.output((product,))
    local = made_of(graph)
    groups = Groups(local.mesh, (0,), torch.device(device), cast(Any, None), {})
    bound = bind_program(local, groups, compilation=compilation)
    made = [op_name(node) for node in bound.local.graph_module.graph.nodes]
    assert name in made
    (y,) = bound.run({})
    assert y is not None
    assert y.is_meta or bool((y == 2).all())
