"""Recurrent layers that are traced drop between them what they drop in eager mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from partita.compiler.capture.torch_private import around_recurrent_layers


def dropping_between_layers() -> AbstractContextManager[object]:
    """Return within what torch takes layers apart one by one, dropouts in between.

    Where torch 2.13 takes all apart at once it compares the number of a layer with that
    of all the wrong way round, and never drops.
    """
    return around_recurrent_layers(_one_by_one)


def _one_by_one(one: Callable[..., Any]) -> Callable[..., Any]:
    def run(
        x: Tensor,
        hidden: Sequence[Any],
        weights: Sequence[Any],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        is_bidirectional: bool,
        is_batch_first: bool,
        layer: Any,
    ) -> tuple[Tensor, list[Any]]:
        x = x.transpose(0, 1) if is_batch_first else x
        ways = 2 if is_bidirectional else 1
        last: list[Any] = []
        for number in range(num_layers):
            own = slice(ways * number, ways * (number + 1))
            given = hidden[own], weights[own], has_biases, 1, 0.0, train
            x, ends = one(x, *given, is_bidirectional, False, layer)
            last += ends
            if dropout and train and number < num_layers - 1:
                x = torch.dropout(x, dropout, train=True)
        return x.transpose(0, 1) if is_batch_first else x, last

    return run
