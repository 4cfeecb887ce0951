"""Programs as one graph of ops on tensors: regions opened, places written in."""

import operator
from dataclasses import replace

import torch
from torch import fx, nn

from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import InputKind, InputRole, OutputKind, OutputRole
from partita.runtime.flat_graph import flatten

aten = torch.ops.aten


def region() -> fx.GraphModule:
    graph = fx.Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    total = graph.call_function(aten.add.Tensor, (a, b))
    graph.output((total, graph.call_function(aten.relu.default, (total,))))
    return fx.GraphModule(nn.Module(), graph)


def local(coordinates: tuple[int, ...]) -> LocalProgram:
    """Return a program that asks for ``dp``, and not for ``tp``."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    dp, _ = graph.placeholder("dp"), graph.placeholder("tp")
    start = graph.call_function(operator.mul, (dp, 2))
    stop = graph.call_function(operator.add, (start, 2))
    part = graph.call_function(aten.slice.Tensor, (x, 0, start, stop))
    both = graph.call_module("fused_0", (part, part))
    last = graph.call_function(operator.getitem, (both, 1))
    graph.output((last, None, last))
    root = nn.Module()
    root.add_module("fused_0", region())
    names = ("y", "nothing", "again")
    return LocalProgram(
        graph_module=fx.GraphModule(root, graph),
        inputs=(
            InputRole(InputKind.INPUT, "x"),
            InputRole(InputKind.COORDINATE, "dp"),
            InputRole(InputKind.COORDINATE, "tp"),
        ),
        outputs=tuple(OutputRole(OutputKind.OUTPUT, name) for name in names),
        input_types=(None, None, None),
        output_types=(None, None, None),
        input_placements=(None, None, None),
        output_placements=(None, None, None),
        mesh=Mesh(dp=2, tp=2),
        coordinates=coordinates,
    )


def test_regions_are_opened_and_coordinates_are_numbers() -> None:
    module, taken = flatten(local((1, 0)))
    assert taken == (0,)
    assert [str(node.target) for node in module.graph.nodes] == [
        "x",
        "aten.slice.Tensor",
        "aten.add.Tensor",
        "aten.relu.default",
        "output",
    ]
    x = torch.arange(-4.0, 4.0)
    y, nothing, again = module.forward(x)
    assert y.equal(torch.relu(2 * x[2:4]))
    assert nothing is None
    assert again is y


def test_ranks_have_one_graph_unless_it_asks_where_they_are() -> None:
    first, *others = (
        str(flatten(replace(local((0, 0)), coordinates=at))[0].graph)
        for at in ((0, 0), (0, 1), (1, 0))
    )
    assert [first == other for other in others] == [True, False]
