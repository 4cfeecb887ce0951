"""What is summed up in a buffer of its own becomes a function of it."""

import torch
from torch import fx

from partita.compiler.ir.out_of_place import make_functional

c10d = torch.ops._c10d_functional


def test_a_sum_in_a_buffer_of_its_own_becomes_a_function_of_it() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    buffer = graph.call_function(torch.ops.aten.cat.default, ([x, x],))
    total = graph.call_function(c10d.all_reduce_.default, (buffer, "sum", "0"))
    graph.output((total,))
    make_functional(graph)
    targets = [node.target for node in graph.nodes if node.op == "call_function"]
    assert targets == [torch.ops.aten.cat.default, c10d.all_reduce.default]
    assert total.args == (buffer, "sum", "0")
