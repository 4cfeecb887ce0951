"""A program compiled as a whole lets go of what it needs only a slice of."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from partita.compiler.capture.torch_private import compile_graph, static_fake_mode
from partita.runtime.kept_copies import keep_copies

ROWS = 64


def compiled(
    module: fx.GraphModule, x: Tensor, *, kept: bool
) -> tuple[Tensor | None, ...]:
    """Return what a graph returns of ``x`` when it is compiled as a whole."""
    mode = static_fake_mode()
    with mode:
        like = torch.empty(x.shape, dtype=x.dtype)
    if kept:
        keep_copies(module, (like,), mode)
    return tuple(compile_graph(module, (like,), mode, {})(x))


def sliced(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return a quarter of what is computed, and a sum of all of it."""
    whole = torch.mm(x, x)
    total = whole.sum()
    return torch.ops.aten.slice.Tensor(whole, 0, 0, ROWS // 4).clone(), total


@pytest.mark.parametrize("kept", [True, False])
def test_a_slice_holds_its_own_memory_alone(kept: bool) -> None:
    x = torch.randn(ROWS, ROWS, dtype=torch.float64)
    part, total = compiled(make_fx(sliced)(x), x, kept=kept)
    assert part is not None
    num_held = part.untyped_storage().nbytes() // part.element_size()
    assert num_held == (ROWS * ROWS // 4 if kept else ROWS * ROWS), (
        "else torch mended it"
    )
    for found, wanted in zip((part, total), sliced(x), strict=True):
        torch.testing.assert_close(found, wanted)


def own_copies(function: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """Return how many copies are kept of what a function does."""
    module = make_fx(function)(x)
    mode = static_fake_mode()
    with mode:
        like = torch.empty(x.shape, dtype=x.dtype)
    keep_copies(module, (like,), mode)
    target = torch.ops.partita.own_copy.default
    return len(module.graph.find_nodes(op="call_function", target=target))


def test_a_copy_that_lets_nothing_go_is_left() -> None:
    def of_what_enters(x: Tensor) -> Tensor:
        return x[:8].clone().sin()

    def of_what_is_read_later(x: Tensor) -> Tensor:
        whole = x.exp()
        return whole[:8].clone().sin().sum() + whole.sum()

    def of_columns(x: Tensor) -> Tensor:
        return x.exp()[:, :8].clone().sin()

    def of_all(x: Tensor) -> Tensor:
        return x.exp().clone().sin()

    def of_what_may_go(x: Tensor) -> Tensor:
        return x.exp()[:8].clone().sin()

    functions = of_what_enters, of_what_is_read_later, of_columns, of_all
    assert [own_copies(function, torch.randn(16, 16)) for function in functions] == [
        0
    ] * 4
    assert own_copies(of_what_may_go, torch.randn(16, 16)) == 1
