"""Tables that rows are looked up in have dense gradients, as all parameters do.

``sparse=True`` asks for a gradient of the rows alone that were looked up: how many they
are depends on values, and no placement parts such a tensor. The dense one has the same
values, and zeros.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor


@contextmanager
def dense_gradients() -> Generator[None]:
    """Within it no look-up makes a sparse gradient, whatever it is asked for."""
    embedding, embedding_bag = torch.embedding, torch.embedding_bag

    def looked_up(
        weight: Tensor,
        indices: Tensor,
        padding_idx: int = -1,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Tensor:
        return embedding(weight, indices, padding_idx, scale_grad_by_freq, False)

    def summed(
        weight: Tensor,
        indices: Tensor,
        offsets: Tensor,
        scale_grad_by_freq: bool = False,
        mode: int = 0,
        sparse: bool = False,
        *others: Any,
        **named: Any,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return embedding_bag(
            weight, indices, offsets, scale_grad_by_freq, mode, False, *others, **named
        )

    one = patch.object(torch, "embedding", looked_up)
    with one, patch.object(torch, "embedding_bag", summed):
        yield
