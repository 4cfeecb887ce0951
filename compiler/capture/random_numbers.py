"""Random numbers that do not know the layout: a function of seed, draw and element.

An op that draws becomes ``partita::random(seed, indices, ...)``, where ``indices``
holds, per dim, the logical index of every element: ``arange(size)`` in the logical
graph, a slice of it on a rank. So any rank draws its own elements, at a cost that is
proportional to its shard, and the same element gets the same number under every
placement, mesh and world size, one process included (DESIGN, decision 9).

The generator is Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers:
As Easy as 1, 2, 3", SC 2011, section 3.3 and table 2. The counter is (element, draw),
the key (seed, step).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def stream_of(key: str) -> int:
    """Return the number of the draw that the node called ``key`` makes: 63 bits.

    >>> stream_of("drop/native_dropout/0") == stream_of("drop/native_dropout/0")
    True
    """
    digest = hashlib.sha256(key.encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def seed_value(seed: int, step: int) -> int:
    """Return seed and step in the one integer that programs take as input.

    >>> seed_value(1, 2) == (1 << 32) + 2
    True
    """
    word = (seed & _MASK) << 32 | (step & _MASK)
    return word - (1 << 64) if word >= 1 << 63 else word


def _multiply(a: Tensor, multiplier: int) -> tuple[Tensor, Tensor]:
    """Return the high and the low word of a 32 x 32 bit product."""
    # int64 wraps; bit patterns are right, and the mask drops the sign's copies.
    product = a * (multiplier - (1 << 32) if multiplier >= 1 << 31 else multiplier)
    if multiplier >= 1 << 31:
        product = product + (a << 32)
    return (product >> 32) & _MASK, product & _MASK


def philox(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """Return four random 32-bit words, as int64, per element of ``counter``."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(c0, _MULTIPLIERS[0])
        high1, low1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0 = (k0 + _WEYL[0]) & _MASK
        k1 = (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def _element(
    indices: Sequence[Tensor], sizes: Sequence[int], device: torch.device
) -> Tensor:
    position = torch.zeros((1,) * len(sizes), dtype=torch.int64, device=device)
    for dim, index in enumerate(indices):
        shape = [1] * len(sizes)
        shape[dim] = -1
        stride = math.prod(sizes[dim + 1 :])
        position = position + index.reshape(shape) * stride
    return position


@torch.library.custom_op("partita::random", mutates_args=())
def random(
    seed: Tensor,
    indices: Sequence[Tensor],
    sizes: Sequence[int],
    stream: int,
    kind: str,
) -> Tensor:
    """Draw one number per element.

    Args:
        seed: 0-d int64, see ``seed_value``.
        indices: per dim, 1-D int64, the logical indices of the elements wanted.
        sizes: the logical shape.
        stream: which draw of the program it is.
        kind: ``uniform`` (f32 in [0, 1), a multiple of 2^-24), ``normal`` (f32) or
            ``bits`` (int64 in [0, 2^32)).
    """
    element = _element(indices, sizes, seed.device)
    ones = torch.ones_like(element)
    counter = (
        element & _MASK,
        (element >> 32) & _MASK,
        ones * (stream & _MASK),
        ones * (stream >> 32),
    )
    first, second, _, _ = philox(counter, ((seed >> 32) & _MASK, seed & _MASK))
    if kind == "bits":
        return first
    if kind == "uniform":
        return (first >> 8).to(torch.float32) * 2.0**-24
    assert kind == "normal", kind
    # Box-Muller in double precision: (0, 1] for the logarithm.
    radius = (((first + 1).double() * 2.0**-32).log() * -2.0).sqrt()
    angle = second.double() * (2.0 * math.pi * 2.0**-32)
    return (radius * angle.cos()).to(torch.float32)


@random.register_fake
def _random_type(
    seed: Tensor,
    indices: Sequence[Tensor],
    sizes: Sequence[int],
    stream: int,
    kind: str,
) -> Tensor:
    shape = [index.shape[0] for index in indices]
    dtype = torch.int64 if kind == "bits" else torch.float32
    return torch.empty(shape, dtype=dtype, device=seed.device)


def draw(seed: Tensor, shape: Sequence[int], stream: int, kind: str) -> Tensor:
    """Return all numbers of a draw of a logical ``shape``."""
    indices = [torch.arange(size, device=seed.device) for size in shape]
    return random(seed, indices, list(shape), stream, kind)
