"""Recurrent layers drop between them in a captured program as they do in eager mode."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.slow import slow
from torch import nn

from partita.compiler.capture.capture import capture


class Cells(nn.Module):
    """Three layers, one of the kinds that torch has."""

    def __init__(self, kind: Callable[..., nn.Module], dropout: float) -> None:
        super().__init__()
        self.cells = kind(4, 4, num_layers=3, dropout=dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a scalar of ``x`` ``[time, batch, 4]``."""
        return self.cells(x)[0].square().mean()


@pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning")
@pytest.mark.parametrize("kind", [nn.LSTM, slow(nn.GRU), nn.RNN])
def test_layers_drop_what_they_hand_on(kind: Callable[..., nn.Module]) -> None:
    x = torch.randn(3, 2, 4)
    draws = {
        dropout: capture(Cells(kind, dropout), (x,), {}).program.draws
        for dropout in (0.0, 0.5)
    }
    assert [len(found) for found in draws.values()] == [0, 2]
    assert capture(Cells(kind, 0.5).eval(), (x,), {}).program.draws == ()
