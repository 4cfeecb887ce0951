"""Random numbers that do not know the layout: a function of seed, draw and element.

An op that draws becomes ``partita::random(seed, indices, ...)``, where ``indices``
holds, per dim, the logical index of every element: ``arange(size)`` in the logical
graph, a slice of it on a rank. So any rank draws its own elements, at a cost that is
proportional to its shard, and the same element gets the same number under every
placement, mesh and world size, one process included (DESIGN, decision 9).

The generator is Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers:
As Easy as 1, 2, 3", SC 2011, section 3.3 and table 2. The counter is (element, draw),
the key (seed, step). A counter gives four words: four elements share one, of which each
takes its own word; a normal number takes two of a counter of its own.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from itertools import product

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_FOUR = 4  # words that one counter gives

_HELD = {"uniform": 13 * 8, "bits": 13 * 8, "normal": 12 * 8}
"""Bytes per counter at the most: its words, products and shifts, where torch counted
them (2.13).
"""

AT_ONCE = {"cpu": 1 << 16, "cuda": 1 << 20}
"""By device, about how many numbers are drawn at once: its words lie in a cache.

4 Mi numbers in one piece took 1.9 s on a core, in pieces of these 0.3 s (2-core AMD
EPYC VM, torch 2.13); a GPU is given some that fill it.
"""

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


def philox(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """Return four random 32-bit words, as int64, per element of ``counter``."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # int64 wraps, which leaves the bits right; in place, for it is many passes.
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0 = (second >> 32).bitwise_and_(_MASK).bitwise_xor_(c1).bitwise_xor_(k0)
        c2 = (first >> 32).bitwise_and_(_MASK).bitwise_xor_(c3).bitwise_xor_(k1)
        c1, c3 = second.bitwise_and_(_MASK), first.bitwise_and_(_MASK)
        k0 = (k0 + _WEYL[0]) & _MASK
        k1 = (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def pieces(shape: Sequence[int], most: int) -> Iterator[tuple[slice, ...]]:
    """Yield what to draw at once of a tensor: about ``most`` elements each.

    Pieces are cut along one dim, in fours, and along those before it one by one. The
    first is no smaller than the others.
    """
    if not shape:
        yield ()
    if not shape or 0 in shape:
        return
    dim, inner = 0, math.prod(shape[1:])
    while inner > most:
        dim += 1
        inner //= shape[dim]
    count = -(-shape[dim] * inner // most)
    step = -(-shape[dim] // (_FOUR * count)) * _FOUR
    behind = [slice(None)] * (len(shape) - dim - 1)
    for before in product(*map(range, shape[:dim])):
        for start in range(0, shape[dim], step):
            alone = (slice(at, at + 1) for at in before)
            yield (*alone, slice(start, start + step), *behind)


def _element(indices: Sequence[Tensor], sizes: Sequence[int], seed: Tensor) -> Tensor:
    position = seed.new_zeros((1,) * len(sizes))
    for dim, index in enumerate(indices):
        shape = [1] * len(sizes)
        shape[dim] = -1
        stride = math.prod(sizes[dim + 1 :])
        position = position + index.reshape(shape) * stride
    return position


def _words(counter: Tensor, seed: Tensor, stream: int) -> Words:
    """Return four words of a draw for every counter."""
    whole = (
        counter & _MASK,
        counter >> 32,
        torch.full_like(counter, stream & _MASK),
        torch.full_like(counter, stream >> 32),
    )
    return philox(whole, ((seed >> 32) & _MASK, seed & _MASK))


def may_share_words(
    shape: Sequence[int], sizes: Sequence[int], kind: str, device: str
) -> bool:
    """Whether elements may come in whole groups, along the last dim, that share words.

    Whether a rank's do can be seen by looking at where they begin. A GPU's would have
    to be waited for: there each element draws its group's words anew.

    Args:
        shape: of what is drawn here.
        sizes: the logical shape.
        kind: as in ``random``; a normal number has a counter of its own.
        device: ``cpu`` or ``cuda``.

    >>> may_share_words((8, 4), (16, 4), "bits", "cpu")
    True
    """
    ends = *shape[-1:], *sizes[-1:]
    in_fours = bool(ends) and not any(size % _FOUR for size in ends)
    return in_fours and kind != "normal" and device == "cpu"


def _are_groups(index: Tensor) -> bool:
    groups = index.reshape(-1, _FOUR)
    whole = (groups[:, :1] // _FOUR) * _FOUR + torch.arange(_FOUR)
    return torch.equal(groups, whole)


def _at_once(device: str, in_fours: bool) -> int:
    """Return how many numbers are drawn at once: those of so many counters."""
    return AT_ONCE[device] if in_fours else AT_ONCE[device] // _FOUR


def held_bytes(
    shape: Sequence[int], sizes: Sequence[int], kind: str, device: str
) -> int:
    """Return what drawing numbers holds beside them; see ``may_share_words``.

    >>> held_bytes((4096, 1024), (8192, 1024), "uniform", "cpu")
    1703936
    """
    in_fours = may_share_words(shape, sizes, kind, device)
    first = next(pieces(shape, _at_once(device, in_fours)), ())
    drawn = (len(range(size)[own]) for size, own in zip(shape, first, strict=False))
    return _HELD[kind] // (_FOUR if in_fours else 1) * math.prod(drawn)


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
    shape = [len(index) for index in indices]
    dtype = torch.int64 if kind == "bits" else torch.float32
    found = torch.empty(shape, dtype=dtype, device=seed.device)
    device = seed.device.type
    may_share = may_share_words(shape, sizes, kind, device)
    in_fours = may_share and _are_groups(indices[-1])
    for piece in pieces(shape, _at_once(device, in_fours)):
        own = [index[at] for index, at in zip(indices, piece, strict=True)]
        if in_fours:
            own[-1] = own[-1][::_FOUR]
        element = _element(own, sizes, seed)
        if kind == "normal":
            found[piece].copy_(_normal(_words(element, seed, stream)))
            continue
        words = _words(element >> 2, seed, stream)
        bits = _in_turn(words) if in_fours else _one_of(words, element)
        del words  # else the next piece finds those of this one
        if kind == "uniform":
            found[piece].copy_(bits.bitwise_right_shift_(8)).mul_(2.0**-24)
        else:
            found[piece].copy_(bits)
        del bits
    return found


def _normal(words: Words) -> Tensor:
    """Return a normal number of the first two words (Box-Muller), in double."""
    first, second, _, _ = words
    radius = (((first + 1).double() * 2.0**-32).log() * -2.0).sqrt()  # log of (0, 1]
    return radius * (second.double() * (2.0 * math.pi * 2.0**-32)).cos()


def _in_turn(words: Words) -> Tensor:
    """Return the words of four elements that stand side by side."""
    return torch.stack(words, -1).flatten(-2)


def _one_of(words: Words, element: Tensor) -> Tensor:
    """Return of the words that four elements share each one's own."""
    first, second, third, fourth = words
    is_odd, is_late = (element & 1).bool(), (element & 2).bool()
    early = torch.where(is_odd, second, first)
    return torch.where(is_late, torch.where(is_odd, fourth, third), early)


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
