"""A mask is sent as bytes where a program is compiled as a whole, and is a mask."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx

from partita.compiler.capture.torch_private import compile_graph, static_fake_mode
from partita.compiler.ir.mesh import Mesh
from partita.runtime.groups import bind
from partita.runtime.launch import launch
from partita.runtime.sent_masks import send_masks_as_bytes

aten, c10d = torch.ops.aten, torch.ops._c10d_functional

ROWS = 16


def masked(group: str, is_viewed: bool) -> fx.GraphModule:
    """Return a graph that hides what a mask hides, of which each rank makes its part.

    It waits for the mask, or for a view of it.
    """
    graph = fx.Graph()
    x = graph.placeholder("x")
    part = graph.call_function(aten.gt.Scalar, (x, 0.0))
    whole = graph.call_function(c10d.all_gather_into_tensor.default, (part, 2, group))
    last = [(c10d.wait_tensor.default, ()), (aten.reshape.default, ([2, ROWS],))]
    for op, others in reversed(last) if is_viewed else last:
        whole = graph.call_function(op, (whole, *others))
    hidden = graph.call_function(aten.full.default, ([], -1.0))
    graph.output((graph.call_function(aten.where.self, (whole, x, hidden)),))
    return fx.GraphModule({}, graph)


Made = tuple[Tensor, Tensor, set[torch.dtype]]


def compute(is_viewed: bool) -> Made:
    """Return what a graph makes and what it makes compiled, and what it gathers."""
    groups = bind(Mesh(tp=2), "cpu")
    (name,) = groups.names.values()
    x = torch.linspace(-1, 1, ROWS) * (-1) ** groups.rank
    module = masked(name, is_viewed)
    (wanted,) = module(x)
    mode = static_fake_mode()
    with mode:
        like = torch.empty(x.shape)
    send_masks_as_bytes(module, (like,), mode)
    gather = c10d.all_gather_into_tensor.default
    nodes = module.graph.find_nodes(op="call_function", target=gather)
    types = {node.args[0].kwargs["dtype"] for node in nodes}
    (found,) = compile_graph(module, (like,), mode, {})(x)
    assert found is not None
    return wanted, found, types


@pytest.mark.dist
@pytest.mark.parametrize("is_viewed", [False, True])
def test_a_mask_is_gathered_as_bytes(is_viewed: bool) -> None:
    for wanted, found, types in launch(f"{__file__}:compute", 2, (is_viewed,)):
        assert types == {torch.uint8}
        torch.testing.assert_close(found, wanted)
        assert 0 < (found == -1.0).sum() < found.numel()


def test_what_is_no_mask_is_gathered_as_it_is() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    whole = graph.call_function(c10d.all_gather_into_tensor.default, (x, 2, "0"))
    graph.output((graph.call_function(c10d.wait_tensor.default, (whole,)),))
    module, mode = fx.GraphModule({}, graph), static_fake_mode()
    with mode:
        like = torch.empty(ROWS)
    before = str(module.graph)
    send_masks_as_bytes(module, (like,), mode)
    assert str(module.graph) == before


def scattered(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return what a graph makes of this rank's part of where any rank is above 0."""
    groups = bind(Mesh(tp=2), "cpu")
    (name,) = groups.names.values()
    graph = fx.Graph()
    given = graph.placeholder("x")
    signed = graph.call_function(aten.mul.Scalar, (given, (-1.0) ** groups.rank))
    part = graph.call_function(aten.gt.Scalar, (signed, 0.0))
    asked = part, "max", 2, name
    mask = graph.call_function(c10d.reduce_scatter_tensor.default, asked)
    mask = graph.call_function(c10d.wait_tensor.default, (mask,))
    mine = graph.call_function(aten.full.default, ([ROWS], 2.0))
    hidden = graph.call_function(aten.full.default, ([], -1.0))
    graph.output((graph.call_function(aten.where.self, (mask, mine, hidden)),))
    module, mode = fx.GraphModule({}, graph), static_fake_mode()
    with mode:
        like = torch.empty(x.shape)
    send_masks_as_bytes(module, (like,), mode)
    (found,) = compile_graph(module, (like,), mode, {})(x)
    assert found is not None
    rows = slice(groups.rank * ROWS, (groups.rank + 1) * ROWS)
    return torch.where(x[rows] != 0, 2.0, -1.0), found


@pytest.mark.dist
def test_a_mask_is_reduced_as_bytes() -> None:
    x = torch.linspace(-1, 1, 2 * ROWS)
    x[::3] = 0.0
    for wanted, found in launch(f"{__file__}:scattered", 2, (x,)):
        torch.testing.assert_close(found, wanted)
