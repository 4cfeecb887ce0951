"""Products of rows in the order of their groups, one by one and by torch's kernel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from partita.compiler.capture.sorted_groups import (
    multiply_by_kernel,
    order_of,
    outer_by_kernel,
    sorted_multiply,
    sorted_outer,
)

MEMBER = torch.tensor([[0, 1, 0], [0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 0, 1]]).bool()
"""The first group has no rows, the second row no group, and they are in no order."""

Product = Callable[[Tensor, Tensor, Tensor], Tensor]


def _random(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator)


def test_rows_of_a_group_keep_their_order_and_those_of_none_come_last() -> None:
    order, inverse, ends, is_past = order_of(MEMBER)

    assert order.tolist() == [0, 3, 2, 4, 1]
    assert ends.tolist() == [0, 2, 4]
    assert is_past.squeeze(1).tolist() == [False, False, False, False, True]
    assert order[inverse].tolist() == [0, 1, 2, 3, 4]


def test_more_groups_than_a_byte_tells_apart_are_told_apart() -> None:
    own = torch.arange(700) * 3 % 700
    order, _, ends, is_past = order_of(own.unsqueeze(1) == torch.arange(699))

    assert own[order].tolist() == list(range(700))
    assert ends.tolist() == list(range(1, 700))
    assert is_past.squeeze(1).nonzero().tolist() == [[699]]


@pytest.mark.parametrize("product", [sorted_multiply, multiply_by_kernel])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_rows_meet_the_matrix_of_their_group(
    product: Product, is_transposed: bool
) -> None:
    x, weight = _random(5, 8), _random(3, 8, 4)
    if is_transposed:
        weight = weight.transpose(1, 2).contiguous().transpose(1, 2)
    order, inverse, ends, is_past = order_of(MEMBER)
    found = product(x[order], weight, ends).masked_fill(is_past, 0.0)[inverse]
    wanted = torch.einsum("sk,ekn,se->sn", x, weight, MEMBER.float())

    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("product", [sorted_outer, outer_by_kernel])
def test_outer_products_are_of_the_rows_of_a_group(product: Product) -> None:
    x, grad = _random(5, 8), _random(5, 4)
    order, _, ends, _ = order_of(MEMBER)
    wanted = torch.einsum("sk,sn,se->ekn", x, grad, MEMBER.float())

    torch.testing.assert_close(product(x[order], grad[order], ends), wanted)
