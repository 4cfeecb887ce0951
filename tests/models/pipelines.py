"""Small models of the shapes that a pipeline is cut from; see ``zoo.py``.

Each returns the mean over the batch of a loss per sample, so the mean over equal parts
of the batch is the loss of the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from tests.models.zoo import Built
from torch import Tensor, nn
from torch.nn import functional as F

BATCH, WIDTH, WORDS, LENGTH = 8, 16, 24, 6


def _error(found: Tensor, target: Tensor) -> Tensor:
    """Return the mean over the batch of every sample's squared error."""
    return (found - target).square().flatten(1).mean(1).mean()


class Chain(nn.Module):
    """Layers one after another."""

    def __init__(self, num_layers: int = 8) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(num_layers))

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Return the loss of ``x`` ``[batch, width]``."""
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return _error(x, target)


class Diamond(nn.Module):
    """Two ways from a stem to a head, which meet in the head alone."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.left = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )
        self.right = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH))
        self.head = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Return the loss of ``x`` ``[batch, width]``."""
        x = torch.relu(self.stem(x))
        both = torch.cat([self.left(x), self.right(x)], 1)
        return _error(self.head(both), target)


class Hourglass(nn.Module):
    """Down, then up, with a skip from each width to the same one on the way back."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        widths = [WIDTH >> level for level in range(depth + 1)]
        steps = [*pairwise(widths)]
        self.down = nn.ModuleList(nn.Linear(a, b) for a, b in steps)
        self.up = nn.ModuleList(nn.Linear(b, a) for a, b in reversed(steps))

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Return the loss of ``x`` ``[batch, width]``."""
        skips: list[Tensor] = []
        for layer in self.down:
            skips.append(x)
            x = torch.tanh(layer(x))
        for layer in self.up:
            x = torch.tanh(layer(x)) + skips.pop()
        return _error(x, target)


class Tied(nn.Module):
    """A language model whose embedding is its head, and that adds it in between."""

    def __init__(self, num_layers: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(0.1 * torch.randn(LENGTH, WIDTH))
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(num_layers))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of ``ids`` ``[batch, length]``."""
        x = self.words(ids) + self.places
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        logits = F.linear(self.norm(x), self.words.weight)
        each = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
        return each.mean(1).mean()


class Uneven(nn.Module):
    """Convolutions, then linear layers that each compute less than one of them."""

    def __init__(
        self, channels: int = 8, width: int = 128, num_layers: int = 8
    ) -> None:
        super().__init__()
        steps = [*pairwise((3, channels, channels, channels))]
        self.stem = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in steps)
        self.widen = nn.Linear(channels * 16, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(num_layers))

    def forward(self, images: Tensor, target: Tensor) -> Tensor:
        """Return the loss of ``images`` ``[batch, 3, 8, 8]``."""
        x = images
        for conv in self.stem:
            x = torch.relu(conv(x))
        x = self.widen(F.avg_pool2d(x, 2).flatten(1))
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return _error(x, target)


class ConvStem(nn.Module):
    """Convolutions of large images, then few wide layers that compute less."""

    def __init__(
        self, channels: int = 32, width: int = 512, num_convs: int = 4
    ) -> None:
        super().__init__()
        steps = [*pairwise((3, *(channels,) * num_convs))]
        self.stem = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in steps)
        self.wide = nn.ModuleList(
            nn.Linear(a, width) for a in (channels * 16, *(width,) * (num_convs - 1))
        )

    def forward(self, images: Tensor, target: Tensor) -> Tensor:
        """Return the loss of ``images`` ``[batch, 3, 32, 32]``."""
        x = images
        for conv in self.stem:
            x = torch.relu(conv(x))
        x = F.avg_pool2d(x, 8).flatten(1)
        for layer in self.wide:
            x = torch.tanh(layer(x))
        return _error(x, target)


def _rows(model: Callable[[], nn.Module]) -> Callable[[], Built]:
    def build() -> Built:
        torch.manual_seed(0)
        made = model()
        return made, (torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)), {}

    return build


def tied(num_layers: int = 4) -> Built:
    """Return a tied language model with ids and labels."""
    torch.manual_seed(0)
    model = Tied(num_layers)
    ids = torch.randint(0, WORDS, (BATCH, LENGTH))
    return model, (ids, torch.randint(0, WORDS, (BATCH, LENGTH))), {}


def uneven() -> Built:
    """Return convolutions before linear layers, with images."""
    torch.manual_seed(0)
    model = Uneven()
    return model, (torch.randn(BATCH, 3, 8, 8), torch.randn(BATCH, 128)), {}


def conv_stem(batch: int = 16) -> Built:
    """Return convolutions before wide layers, with images."""
    torch.manual_seed(0)
    model = ConvStem()
    return model, (torch.randn(batch, 3, 32, 32), torch.randn(batch, 512)), {}


PIPELINES: dict[str, Callable[[], Built]] = {
    "chain": _rows(Chain),
    "diamond": _rows(Diamond),
    "hourglass": _rows(Hourglass),
    "tied": tied,
    "uneven": uneven,
}

FEW_CALLS: dict[str, Callable[[], Built]] = {
    "chain": _rows(lambda: Chain(2)),
    "diamond": _rows(Diamond),
    "hourglass": _rows(lambda: Hourglass(1)),
    "tied": lambda: tied(1),
}
"""The same shapes with as few calls as may be, for tests that try every cut."""
