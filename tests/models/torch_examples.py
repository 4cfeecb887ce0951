"""Models of the kinds that torch's own examples train, those with LSTMs left out.

The kinds are those of github.com/pytorch/examples; each is written anew, and small.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from tests.models.zoo import Built
from torch import Tensor, nn
from torch.nn import functional as F


class Digits(nn.Module):
    """Two convolutions, pooling, dropout of two kinds, two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3)
        self.hidden, self.last = nn.Linear(16 * 6 * 6, 32), nn.Linear(32, 10)

    def forward(self, images: Tensor, digits: Tensor) -> Tensor:
        """Return the loss of ``images`` ``[batch, 1, 16, 16]``."""
        x = self.second(self.first(images).relu()).relu()
        x = F.dropout2d(F.max_pool2d(x, 2), 0.25, self.training).flatten(1)
        x = F.dropout(self.hidden(x).relu(), 0.5, self.training)
        return F.nll_loss(F.log_softmax(self.last(x), dim=1), digits)


class Enlarger(nn.Module):
    """Super-resolution: convolutions whose channels are shuffled into pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 16, 5, 1, 2), nn.Conv2d(16, 4, 3, 1, 1)

    def forward(self, small: Tensor, large: Tensor) -> Tensor:
        """Return the error of ``small`` made twice as large."""
        return F.mse_loss(
            F.pixel_shuffle(self.second(self.first(small).relu()), 2), large
        )


class Autoencoder(nn.Module):
    """A variational autoencoder: a draw from what the encoder tells."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.told = nn.Linear(64, 32), nn.Linear(32, 16)
        self.decode, self.pixels = nn.Linear(8, 32), nn.Linear(32, 64)

    def forward(self, images: Tensor) -> Tensor:
        """Return the loss of ``images`` ``[batch, 8, 8]`` of numbers from 0 to 1."""
        x = images.view(-1, 64)
        mean, log_variance = self.told(self.encode(x).relu()).chunk(2, dim=1)
        drawn = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        seen = torch.sigmoid(self.pixels(self.decode(drawn).relu()))
        far = 1 + log_variance - mean.pow(2) - log_variance.exp()
        return F.binary_cross_entropy(seen, x, reduction="sum") - 0.5 * far.sum()


class Generator(nn.Module):
    """Of a pair that compete: transposed convolutions and batch norms."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ConvTranspose2d(8, 16, 4, 1, 0, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(16, 3, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, noise: Tensor) -> Tensor:
        """Return the mean square of the images that noise becomes."""
        return self.layers(noise).square().mean()


class Judge(nn.Module):
    """Its rival: strided convolutions, leaky, that tell images from made ones."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(8, 16, 4, 2, 1, bias=False),
            nn.BatchNorm2d(16),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(16, 1, 4, 1, 0, bias=False),
        )

    def forward(self, images: Tensor, real: Tensor) -> Tensor:
        """Return the loss of ``images`` ``[batch, 3, 16, 16]``."""
        told = self.layers(images).flatten()
        return F.binary_cross_entropy(torch.sigmoid(told), real)


class Painter(nn.Module):
    """Style transfer: reflected borders, instance norms, pixels repeated, Gram."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.norm = nn.Conv2d(3, 8, 3, 2), nn.InstanceNorm2d(8, affine=True)
        self.up = nn.Conv2d(8, 3, 3)

    def forward(self, images: Tensor) -> Tensor:
        """Return the loss of ``images`` ``[batch, 3, 16, 16]``."""
        x = self.norm(self.down(F.pad(images, (1, 1, 1, 1), "reflect"))).relu()
        x = F.interpolate(x, mode="nearest", scale_factor=2)
        x = self.up(F.pad(x, (1, 1, 1, 1), "reflect"))
        flat = x.view(len(x), 3, -1)
        style = flat.bmm(flat.transpose(1, 2)) / flat.shape[-1]
        return F.mse_loss(x, images) + style.square().mean()


class Neighbours(nn.Module):
    """A graph convolution: nodes add up what is next to them, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 8), nn.Linear(8, 4, bias=False)

    def forward(self, nodes: Tensor, edges: Tensor, kinds: Tensor) -> Tensor:
        """Return the loss of ``nodes`` ``[num, 16]``; ``edges`` are ``[num, num]``."""
        x = F.dropout((edges @ self.first(nodes)).relu(), 0.5, self.training)
        return F.nll_loss(F.log_softmax(edges @ self.second(x), dim=1), kinds)


class Attentive(nn.Module):
    """A graph attention: where there is no edge, nothing is seen."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 32, bias=False)
        self.scores = nn.Parameter(torch.randn(4, 16, 1) / 4)

    def forward(self, nodes: Tensor, edges: Tensor, kinds: Tensor) -> Tensor:
        """Return the loss of ``nodes`` ``[num, 16]``; ``edges`` are ``[num, num]``."""
        x = self.layer(nodes).view(len(nodes), 4, 8).permute(1, 0, 2)
        own, other = x @ self.scores[:, :8], x @ self.scores[:, 8:]
        scores = F.leaky_relu(own + other.mT, 0.2)
        seen = torch.where(edges > 0, scores, -9e15 * torch.ones_like(scores))
        weights = F.dropout(F.softmax(seen, dim=-1), 0.1, self.training)
        return F.nll_loss(F.log_softmax(F.elu(weights @ x).mean(0), dim=1), kinds)


class Actor(nn.Module):
    """Actor and critic: what was done is scored by how much better it went."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.acts, self.worth = (
            nn.Linear(*n) for n in ((4, 16), (16, 2), (16, 1))
        )

    def forward(self, states: Tensor, done: Tensor, returns: Tensor) -> Tensor:
        """Return the loss of ``states`` ``[steps, 4]``."""
        x = self.seen(states).relu()
        ways = torch.distributions.Categorical(
            F.softmax(self.acts(x), dim=-1), validate_args=False
        )
        worth = self.worth(x).squeeze(-1)
        better = returns - worth.detach()
        return F.smooth_l1_loss(worth, returns) - (ways.log_prob(done) * better).sum()


class Twins(nn.Module):
    """A siamese network: one encoder of two images, and whether they are alike."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.pair = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, one: Tensor, other: Tensor, alike: Tensor) -> Tensor:
        """Return the loss of pairs of images ``[batch, 1, 8, 8]``."""
        both = torch.cat([self.image(one), self.image(other)], dim=1)
        return F.binary_cross_entropy(torch.sigmoid(self.pair(both)).squeeze(), alike)


def _digits() -> Built:
    return Digits(), (torch.randn(8, 1, 16, 16), torch.randint(0, 10, (8,))), {}


def _enlarger() -> Built:
    return Enlarger(), (torch.randn(4, 1, 8, 8), torch.randn(4, 1, 16, 16)), {}


def _autoencoder() -> Built:
    return Autoencoder(), (torch.rand(8, 8, 8),), {}


def _generator() -> Built:
    return Generator(), (torch.randn(8, 8, 1, 1),), {}


def _judge() -> Built:
    return Judge(), (torch.randn(8, 3, 16, 16), torch.rand(8)), {}


def _painter() -> Built:
    return Painter(), (torch.randn(4, 3, 16, 16),), {}


def _neighbours() -> Built:
    given = torch.randn(20, 16), torch.rand(20, 20), torch.randint(0, 4, (20,))
    return Neighbours(), given, {}


def _attentive() -> Built:
    edges = (torch.rand(20, 20) > 0.5).float()
    return Attentive(), (torch.randn(20, 16), edges, torch.randint(0, 8, (20,))), {}


def _actor() -> Built:
    return Actor(), (torch.randn(8, 4), torch.randint(0, 2, (8,)), torch.randn(8)), {}


def _twins() -> Built:
    images = torch.randn(8, 1, 8, 8), torch.randn(8, 1, 8, 8)
    return Twins(), (*images, torch.rand(8)), {}


EXAMPLES: dict[str, Callable[[], Built]] = {
    "digits": _digits,
    "enlarger": _enlarger,
    "autoencoder": _autoencoder,
    "generator": _generator,
    "judge": _judge,
    "painter": _painter,
    "neighbours": _neighbours,
    "attentive": _attentive,
    "actor": _actor,
    "twins": _twins,
}
"""Builders; seed torch before one is called."""
