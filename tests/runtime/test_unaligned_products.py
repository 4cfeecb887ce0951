"""Large products whose rows are not aligned, made some columns at a time."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn

from partita.compiler.ir.program import NodeInfo, Phase, set_info
from partita.compiler.ir.tensor_type import TensorType
from partita.runtime.unaligned_products import multiply_by_columns

aten, partita = torch.ops.aten, torch.ops.partita


@pytest.mark.parametrize("columns", [512, 1024, 1027, 1])
@pytest.mark.parametrize("rows", [24, 2048, 4100])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_blocks_make_up_the_product(
    columns: int, rows: int, is_transposed: bool
) -> None:
    x, y, bias = torch.randn(rows, 5), torch.randn(5, columns), torch.randn(columns)
    if is_transposed:
        x, y = x.t().contiguous().t(), y.t().contiguous().t()
    by_rows = x.sum(1, keepdim=True)
    for op, operands, wanted in [
        (partita.mm_by_columns.default, (x, y), x @ y),
        (partita.addmm_by_columns.default, (bias, x, y), bias + x @ y),
        (partita.addmm_by_columns.default, (by_rows, x, y), by_rows + x @ y),
    ]:
        found = op(*operands)
        assert found.is_contiguous()
        torch.testing.assert_close(found, wanted)


def test_the_ops_are_what_torch_is_told() -> None:
    x, y, bias = torch.randn(3, 5), torch.randn(5, 600), torch.randn(600)
    torch.library.opcheck(partita.mm_by_columns.default, (x, y))
    torch.library.opcheck(partita.addmm_by_columns.default, (bias, x, y))


def program(kind: torch.dtype, rows: int, columns: int) -> fx.Graph:
    """Return a graph of a product and of one with a bias, their types known."""
    graph = fx.Graph()
    bias, x, y = (graph.placeholder(name) for name in ("bias", "x", "y"))
    made = [
        graph.call_function(aten.mm.default, (x, y)),
        graph.call_function(aten.addmm.default, (bias, x, y)),
        graph.call_function(aten.addmm.default, (bias, x, y), {"beta": 2}),
    ]
    for node in made:
        type_ = TensorType((rows, columns), kind)
        set_info(node, NodeInfo(node.name, Phase.FORWARD, (type_,)))
    graph.output((*made, graph.call_function(aten.mm.default, (x, y))))
    return graph


@pytest.mark.parametrize(
    ("kind", "rows", "columns", "is_unaligned"),
    [
        (torch.float32, 256, 1027, True),
        (torch.float32, 255, 1027, False),  # less than a MiB
        (torch.float32, 256, 1032, False),
        (torch.float32, 2**18, 13, False),
        (torch.float64, 256, 1027, False),
        (torch.bfloat16, 512, 1027, False),
    ],
)
def test_large_products_alone_are_made_so(
    kind: torch.dtype, rows: int, columns: int, is_unaligned: bool
) -> None:
    graph = program(kind, rows, columns)
    multiply_by_columns(graph)
    made = [node.target for node in graph.nodes if node.op == "call_function"]
    own = [partita.mm_by_columns.default, partita.addmm_by_columns.default]
    as_they_were = [aten.mm.default, aten.addmm.default]
    first = own if is_unaligned else as_they_were
    assert made == [*first, aten.addmm.default, aten.mm.default]
    if is_unaligned:
        given = torch.randn(columns), torch.randn(rows, 4), torch.randn(4, columns)
        product, *_, wanted = fx.GraphModule(nn.Module(), graph)(*given)
        torch.testing.assert_close(product, wanted)
