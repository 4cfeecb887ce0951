"""Large products whose rows begin where vectors do, in programs compiled as a whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from partita.compiler.capture.torch_private import compile_graph, static_fake_mode
from partita.compiler.ir.mesh import Mesh
from partita.runtime.aligned_rows import align_rows
from partita.runtime.groups import bind
from partita.runtime.launch import launch

aten, c10d = torch.ops.aten, torch.ops._c10d_functional

ROWS, WIDTH, COLUMNS = 256, 16, 1027

Function = Callable[..., Any]


def traced(
    function: Function,
    columns: int = COLUMNS,
    rows: int = ROWS,
    dtype: torch.dtype = torch.float32,
) -> tuple[fx.GraphModule, list[Tensor], list[Tensor], Any]:
    """Return the graph of a function, its operands, such without values, their mode."""
    given = [
        torch.randn(rows, WIDTH),
        torch.randn(WIDTH, columns),
        torch.randn(columns),
    ]
    given = [each.to(dtype) for each in given]
    mode = static_fake_mode()
    with mode:
        like = [torch.empty(each.shape, dtype=dtype) for each in given]
    return make_fx(function)(*given), given, like, mode


def aligned(module: fx.GraphModule) -> int:
    """Return how many products have gaps between their rows."""
    return sum("partita.aligned" in str(node.target) for node in module.graph.nodes)


def by_columns(module: fx.GraphModule) -> int:
    """Return how many products are made some columns at a time."""
    return sum("_by_columns" in str(node.target) for node in module.graph.nodes)


def logits(x: Tensor, weight: Tensor, bias: Tensor) -> list[Tensor]:
    """Return a loss and gradients, as a model's last layers compute them."""
    made = torch.mm(x, weight).view(2, ROWS // 2, -1).view(ROWS, -1)
    share = aten._softmax.default(made, 1, False)
    gradient = share * share.sum(0) + aten.mul.Tensor(bias, 2.0)
    return [share.log().sum(), gradient.t().mm(x), gradient.mm(weight.t())]


def biased(x: Tensor, weight: Tensor, bias: Tensor) -> list[Tensor]:
    """Return what a layer makes of another one's product and bias."""
    return [torch.addmm(bias, x, weight).relu().mm(weight.t())]


@pytest.mark.parametrize("function", [logits, biased])
def test_gaps_change_no_result(function: Function) -> None:
    module, given, like, mode = traced(function)
    options = align_rows(module, like, mode)
    assert aligned(module) == 1
    code = compile_graph(module, like, mode, {**options, "fx_graph_cache": False})
    for own, other in zip(code(*given), function(*given), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-4)
        assert own is not None
        assert own.stride() == other.stride()


@pytest.mark.parametrize("name", ["aligned_mm", "aligned_addmm"])
def test_rows_begin_at_vectors(name: str) -> None:
    x, weight, bias = torch.randn(3, 4), torch.randn(4, 13), torch.randn(13)
    operands = (x, weight) if name == "aligned_mm" else (bias, x, weight)
    found = getattr(torch.ops.partita, name)(*operands)
    assert found.stride() == (16, 1)
    function = torch.mm if name == "aligned_mm" else torch.addmm
    assert torch.equal(found.contiguous(), function(*operands))
    torch.library.opcheck(getattr(torch.ops.partita, name).default, operands)


def test_what_inductor_computes_of_logits_has_gaps_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, given, like, mode = traced(logits)
    options = align_rows(module, like, mode)
    seen: list[tuple[int, ...]] = []

    def mm(x: Tensor, weight: Tensor, *, out: Tensor) -> Tensor:
        seen.append(x.stride())
        return out.copy_(x @ weight)

    from torch._inductor.select_algorithm import extern_kernels

    code = compile_graph(module, like, mode, {**options, "fx_graph_cache": False})
    monkeypatch.setattr(extern_kernels, "mm", mm, raising=False)
    code(*given)
    assert sorted(seen) == [(1, 1032), (1032, 1)]


def leaves(x: Tensor, weight: Tensor, _: Tensor) -> Tensor:
    return torch.mm(x, weight).view(2, ROWS // 2, -1)


def is_seen_as_one_row(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.mm(x, weight).view(-1).exp()


def is_scaled(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.addmm(bias, x, weight, beta=0.5).relu()


def is_read(x: Tensor, weight: Tensor, _: Tensor) -> Tensor:
    return torch.mm(x, weight).relu().sum()


@pytest.mark.parametrize("function", [leaves, is_seen_as_one_row, is_scaled])
def test_who_cannot_do_with_gaps_finds_none(function: Function) -> None:
    module, given, like, mode = traced(function)
    assert align_rows(module, like, mode) == {}
    assert aligned(module) == 0
    assert by_columns(module) == (function is not is_scaled)
    torch.testing.assert_close(module(*given), function(*given), rtol=1e-4, atol=1e-4)


def test_a_product_that_is_sent_has_no_gaps() -> None:
    module, _, like, mode = traced(is_read)
    (product,) = module.graph.find_nodes(op="call_function", target=aten.mm.default)
    reduce = c10d.all_reduce.default
    with module.graph.inserting_after(product):
        module.graph.call_function(reduce, (product, "sum", "0"))
    assert align_rows(module, like, mode) == {}
    assert aligned(module) == 0
    assert by_columns(module) == 1


@pytest.mark.parametrize(
    ("columns", "rows", "dtype"),
    [
        (1032, ROWS, torch.float32),
        (1027, 8, torch.float32),
        (13, 2**15, torch.float32),
        (COLUMNS, ROWS, torch.float64),
    ],
)
def test_what_gains_nothing_is_left(
    columns: int, rows: int, dtype: torch.dtype
) -> None:
    module, _, like, mode = traced(is_read, columns, rows, dtype)
    assert align_rows(module, like, mode) == {}
    assert aligned(module) == by_columns(module) == 0
    module, _, like, mode = traced(is_read)
    assert align_rows(module, like, mode)
    assert aligned(module) == 1


def send(group: str, x: Tensor, weight: Tensor, _: Tensor) -> list[Tensor]:
    """Return what becomes of a product, and what all kinds of messages bring of it."""
    made = torch.mm(x, weight).relu()
    sizes = [ROWS // 2, ROWS // 2]
    started = [
        c10d.all_to_all_single(made, sizes, sizes, group),
        c10d.all_gather_into_tensor(made, 2, group),
        c10d.reduce_scatter_tensor(made, "sum", 2, group),
        c10d.all_reduce(made, "sum", group),
    ]
    return [made.mm(weight.t()), *(c10d.wait_tensor(each) + 1 for each in started)]


def send_in_both_ways() -> tuple[int, list[Tensor | None], list[Tensor]]:
    groups = bind(Mesh(dp=2), "cpu")
    (group,) = groups.names.values()
    torch.manual_seed(groups.rank)
    send_there = partial(send, group)
    module, given, like, mode = traced(send_there)
    options = align_rows(module, like, mode)
    code = compile_graph(module, like, mode, {**options, "fx_graph_cache": False})
    return aligned(module), list(code(*given)), send_there(*given)


@pytest.mark.dist
def test_messages_are_made_of_what_has_no_gaps() -> None:
    for num_aligned, found, wanted in launch(f"{__file__}:send_in_both_ways", 2):
        assert num_aligned == 1
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
