"""Statistics of a batch norm: what their formulas say, whatever part is here."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from partita.compiler.rules import norm_ops


def images(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def over_channels(x: Tensor, ndim: int) -> Tensor:
    return x.reshape([1, -1, *[1] * (ndim - 2)])


@pytest.mark.parametrize("shape", [(5, 4), (3, 4, 2), (4, 4, 3, 3), (2, 4, 2, 1, 3)])
def test_sums_are_those_of_the_formulas(shape: tuple[int, ...]) -> None:
    ndim = len(shape)
    x, grad, mean, deviation = images(*shape), images(*shape) + 1, images(4), images(4)
    dims = [dim for dim in range(ndim) if dim != 1]
    centred = x - over_channels(mean, ndim)
    found = norm_ops.batch_norm_deviations(x, mean)
    torch.testing.assert_close(found, centred.square().sum(dims))
    products, sums = norm_ops.batch_norm_products(grad, x, mean, deviation)
    normal = centred * over_channels(deviation, ndim)
    torch.testing.assert_close(products, (grad * normal).sum(dims))
    torch.testing.assert_close(sums, grad.sum(dims))


def test_no_digits_are_lost_to_a_large_mean() -> None:
    x = images(64, 2, 5).float() * 1e-2 + 1000
    found = norm_ops.batch_norm_deviations(x, x.mean([0, 2]))
    exact = x.double()
    wanted = (exact - exact.mean([0, 2], keepdim=True)).square().sum([0, 2])
    torch.testing.assert_close(found.double(), wanted, rtol=1e-3, atol=0)


def test_nothing_adds_nothing() -> None:
    mean = images(4)
    assert not norm_ops.batch_norm_deviations(images(0, 4, 3), mean).any()
    products, sums = norm_ops.batch_norm_products(
        images(0, 4, 3), images(0, 4, 3), mean, mean
    )
    assert not products.any()
    assert not sums.any()
