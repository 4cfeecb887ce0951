"""Gradients of averages over windows that stick out are torch's, compiled or not."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import partita as pt
from partita.compiler.rules.ceiled_pools import share_out

aten = torch.ops.aten
BACKWARD = {2: aten.avg_pool2d_backward.default, 3: aten.avg_pool3d_backward.default}
POOL = {2: nn.functional.avg_pool2d, 3: nn.functional.avg_pool3d}


@pytest.mark.parametrize("ndim", [2, 3])
def test_shares_are_torchs(ndim: int) -> None:
    generator, compared = torch.Generator().manual_seed(0), 0
    for size, kernel, stride, padding in product((1, 5, 6), (2, 3, 9), (2, 3), (0, 1)):
        x = torch.randn(2, *[size] * ndim, generator=generator, dtype=torch.float64)
        how = [kernel] * ndim, [stride] * ndim, [padding] * ndim, True, True, None
        if size < kernel and (ndim == 3 or size + 2 * padding + stride <= kernel):
            continue  # there is no window, or torch wants none that is larger
        made = POOL[ndim](x, *how)
        grad = torch.randn(made.shape, generator=generator, dtype=x.dtype)
        found = share_out(ndim, grad, x, *how)
        last = (made.shape[-1] - 1) * stride - padding
        assert (found is NotImplemented) == (last + kernel <= size + padding)
        if found is not NotImplemented:
            compared += 1
            torch.testing.assert_close(found, BACKWARD[ndim](grad, x, *how))
            alone = [kernel], [stride], [padding], True, True, None
            assert torch.equal(share_out(ndim, grad, x, *alone), found)
    assert compared >= 5


def test_where_none_can_stick_out_the_op_stays() -> None:
    x, grad = torch.randn(1, 5, 5), torch.randn(1, 3, 3)
    cases = (2, False, None), (2, True, 3), (1, True, None)
    for kernel, counts_padding, divisor in cases:
        how = [kernel] * 2, [2, 2], [0, 0], True, counts_padding, divisor
        assert share_out(2, grad, x, *how) is NotImplemented


class Pooled(nn.Module):
    """A pool whose window is larger than what it pools."""

    def __init__(self, window: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 5, 5))
        self.window = window

    def forward(self, x: Tensor) -> Tensor:
        """Return a scalar of images ``[batch, 4, 5, 5]``."""
        pooled = nn.functional.avg_pool2d(x * self.weight, self.window, ceil_mode=True)
        return pooled.square().sum()


@pytest.mark.parametrize("window", [4, [4]], ids=["number", "list"])
def test_a_program_compiled_as_a_whole_has_torchs_gradients(window: Any) -> None:
    torch.manual_seed(0)
    model, x = Pooled(window), torch.randn(2, 4, 5, 5)
    plan = pt.plan(model, x, mesh=pt.Mesh(dp=1))
    program = pt.compile(model, plan, compilation="whole")
    program.step(x)
    (parameter,) = program.parameters()
    model(x).backward()

    torch.testing.assert_close(parameter.grad, model.weight.grad)
