"""A model with a copy of a part that follows it slowly: a momentum encoder.

He, Fan, Wu, Xie, Girshick, "Momentum Contrast for Unsupervised Visual Representation
Learning", CVPR 2020, section 3.2: only the one is trained, the other is written to in
the forward.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

MOMENTUM = 0.75


def _other_data(own: nn.Parameter, of: nn.Parameter) -> None:
    own.data = own.data * MOMENTUM + of.data * (1.0 - MOMENTUM)


def _data_in_place(own: nn.Parameter, of: nn.Parameter) -> None:
    own.data.mul_(MOMENTUM).add_(of.data, alpha=1.0 - MOMENTUM)


def _in_place(own: nn.Parameter, of: nn.Parameter) -> None:
    own.lerp_(of, 1.0 - MOMENTUM)


FOLLOW: dict[str, Callable[[nn.Parameter, nn.Parameter], None]] = {
    "other data": _other_data,
    "data in place": _data_in_place,
    "in place": _in_place,
}


class MomentumEncoder(nn.Module):
    """Says the same of two views of a batch; ``way`` is one of ``FOLLOW``."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.query = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        for parameter in self.key.parameters():
            parameter.data.add_(1.0)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of views ``x`` and ``y``, both ``[batch, 8]``."""
        query = self.query(x)
        with torch.no_grad():
            both = zip(self.key.parameters(), self.query.parameters(), strict=True)
            for own, of in both:
                FOLLOW[self.way](own, of)
            key = self.key(y)
        return (query - key).square().mean()
