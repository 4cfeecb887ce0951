"""Numbers that eager ops draw as a program does: how they are spread, and when."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from partita.compiler.capture.eager_draws import LayoutFreeDraws


def test_exponential_numbers_have_their_mean_and_a_logarithm() -> None:
    drawn = torch.empty(1 << 16)
    with LayoutFreeDraws(torch.tensor(0), ("exponential/0",)):
        drawn.exponential_(4.0)
    assert float(drawn.mean()) == pytest.approx(0.25, rel=0.02)
    assert float((drawn > 0.5).float().mean()) == pytest.approx(math.exp(-2), rel=0.05)
    assert bool(drawn.log().isfinite().all())


def test_attention_that_drops_nothing_draws_nothing() -> None:
    query, key, value = torch.randn(3, 2, 4, 8, 16)
    alone = nn.functional.scaled_dot_product_attention(query, key, value)
    with LayoutFreeDraws(torch.tensor(0), ()):
        found = nn.functional.scaled_dot_product_attention(query, key, value)
    assert torch.equal(found, alone)
