"""Who sends what, where a tensor goes from one stage's ranks to another's.

Each element that a receiver lacks comes once, from one rank that holds it. Where
several do, receivers are shared out among them by how much they take, both in the
order of their meshes, so that neighbours serve neighbours.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod

from partita.compiler.ir.layout import Run, check_placement, shard_runs
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement

Region = tuple[slice, ...]
"""A block of a shard, one slice per dim."""

_Runs = tuple[tuple[Run, ...], ...]
"""Per dim, the runs of logical indices that a rank holds."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A placement on the mesh of a stage; nothing in it is partial.

    ``ranks`` are the numbers that the stage's ranks have among all, in mesh order.

    >>> Placed(Mesh(tp=2), (4, 5), Placement.parse("S(0)")).coordinates(5)
    (1,)
    """

    mesh: Mesh
    ranks: tuple[int, ...]
    placement: Placement

    def __post_init__(self) -> None:
        assert len(set(self.ranks)) == len(self.ranks) == self.mesh.size, self
        assert not self.placement.has_partial, f"{self}: box it before it is moved"

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Return where ``rank`` stands in the mesh."""
        return self.mesh.coordinates(self.ranks.index(rank))


@dataclass(frozen=True, slots=True)
class Message:
    """What one rank sends to another, or keeps where the two are one.

    Region by region: ``taken`` is where it lies in the sender's shard, ``put`` where
    in the receiver's.

    >>> rows = slice(0, 2)
    >>> Message(0, 2, ((rows, slice(1, 4)),), ((rows, slice(0, 3)),)).numel
    6
    """

    sender: int
    receiver: int
    taken: tuple[Region, ...]
    put: tuple[Region, ...]

    @property
    def numel(self) -> int:
        """The number of elements."""
        return _numel(self.taken)

    @property
    def on_wire(self) -> bool:
        """Whether it leaves its rank."""
        return self.sender != self.receiver


@lru_cache(maxsize=1 << 12)
def transfer(
    shape: tuple[int, ...], source: Placed, target: Placed
) -> tuple[Message, ...]:
    """Return the messages that move a tensor of logical ``shape``, by sender, receiver.

    Two ranks exchange one message at most, and none is empty.

    >>> source = Placed(Mesh(tp=2), (0, 1), Placement.parse("S(0)"))
    >>> target = Placed(Mesh(tp=4), (2, 3, 4, 5), Placement.parse("S(1)"))
    >>> messages = transfer((6, 8), source, target)
    >>> [(m.sender, m.receiver, m.numel) for m in messages][:5]
    [(0, 2, 6), (0, 3, 6), (0, 4, 6), (0, 5, 6), (1, 2, 6)]
    >>> messages[5].put
    ((slice(3, 6, None), slice(0, 2, None)),)

    Raises:
        BadPlacement: when a placement does not fit the shape and its mesh.
    """
    holders: dict[_Runs, list[int]] = {}
    for rank, held in _runs_of(shape, source):
        holders.setdefault(held, []).append(rank)
    # Axes split one dim each, so what is held is every combination of these.
    by_dim = [_HeldOf(dict.fromkeys(runs)) for runs in zip(*holders, strict=True)]
    pieces: dict[_Runs, list[_Piece]] = {}
    demands: dict[_Runs, list[tuple[int, _Piece]]] = {}
    for rank, wanted in _runs_of(shape, target):
        if wanted not in pieces:
            pieces[wanted] = list(_pieces(by_dim, wanted))
        for piece in pieces[wanted]:
            demands.setdefault(piece.held, []).append((rank, piece))
    messages = [
        Message(sender, receiver, piece.taken, piece.put)
        for held, asked in demands.items()
        for sender, (receiver, piece) in zip(
            _senders(holders[held], asked), asked, strict=True
        )
    ]
    return tuple(sorted(messages, key=lambda m: (m.sender, m.receiver)))


def sent_bytes(messages: Iterable[Message], rank: int, itemsize: int) -> int:
    """Return the bytes that ``rank`` sends to others."""
    return itemsize * sum(m.numel for m in messages if m.on_wire and m.sender == rank)


def received_bytes(messages: Iterable[Message], rank: int, itemsize: int) -> int:
    """Return the bytes that ``rank`` receives from others."""
    return itemsize * sum(m.numel for m in messages if m.on_wire and m.receiver == rank)


def common_regions(
    held: _Runs, wanted: _Runs
) -> tuple[tuple[Region, ...], tuple[Region, ...]]:
    """Return the blocks that two shards have in common, in logical order.

    First where they lie in the one that holds ``held``, then in the other.
    """
    return _regions([_overlaps(*runs) for runs in zip(held, wanted, strict=True)])


@dataclass(frozen=True, slots=True)
class _Piece:
    """What a receiver takes of those who hold ``held``."""

    held: _Runs
    taken: tuple[Region, ...]
    put: tuple[Region, ...]
    numel: int


def _runs_of(shape: tuple[int, ...], placed: Placed) -> Iterator[tuple[int, _Runs]]:
    check_placement(shape, placed.placement, placed.mesh)
    for rank, coords in zip(placed.ranks, placed.mesh.all_coordinates(), strict=True):
        yield rank, shard_runs(shape, placed.placement, placed.mesh, coords)


class _HeldOf:
    """What is held of one dim, each of its indices by one of ``parts``."""

    def __init__(self, parts: Iterable[tuple[Run, ...]]) -> None:
        runs = sorted((*run, part) for part in parts for run in part if run[0] < run[1])
        self._starts = [start for start, _, _ in runs]
        self._stops = [stop for _, stop, _ in runs]
        self._parts = [part for _, _, part in runs]

    def met_by(self, wanted: tuple[Run, ...]) -> Iterator[tuple[Run, ...]]:
        """Yield the parts that have some of ``wanted``, each once."""
        met: dict[tuple[Run, ...], None] = {}
        for start, stop in wanted:
            if start == stop:
                continue
            first = bisect_right(self._stops, start)
            behind = bisect_left(self._starts, stop)
            met |= dict.fromkeys(self._parts[first:behind])
        yield from met


def _pieces(by_dim: Sequence[_HeldOf], wanted: _Runs) -> Iterator[_Piece]:
    """Yield the pieces that make up ``wanted``; ``by_dim`` is what is held of each."""
    met = [
        [(held, _overlaps(held, runs)) for held in known.met_by(runs)]
        for known, runs in zip(by_dim, wanted, strict=True)
    ]
    for dims in product(*met):
        taken, put = _regions([shared for _, shared in dims])
        yield _Piece(tuple(held for held, _ in dims), taken, put, _numel(taken))


def _senders(
    holders: Sequence[int], asked: Sequence[tuple[int, _Piece]]
) -> Iterator[int]:
    """Yield who serves each of ``asked``: itself where it holds the piece.

    What the others take is cut into as many equal stretches as there are holders, and
    each is served by the holder in whose stretch the middle of its piece lies.
    """
    hold = set(holders)
    wire = sum(piece.numel for rank, piece in asked if rank not in hold)
    before = 0
    for rank, piece in asked:
        if rank in hold:
            yield rank
        else:
            yield holders[len(holders) * (2 * before + piece.numel) // (2 * wire)]
            before += piece.numel


@lru_cache(maxsize=1 << 16)
def _overlaps(
    held: tuple[Run, ...], wanted: tuple[Run, ...]
) -> tuple[tuple[slice, slice], ...]:
    """Return the stretches that two ascending lists of runs share, by place in each.

    >>> _overlaps(((0, 4),), ((1, 2), (3, 6)))
    ((slice(1, 2, None), slice(0, 1, None)), (slice(3, 4, None), slice(1, 2, None)))
    """
    found: list[tuple[slice, slice]] = []
    i = j = in_held = in_wanted = 0
    while i < len(held) and j < len(wanted):
        (held_start, held_stop), (wanted_start, wanted_stop) = held[i], wanted[j]
        start, stop = max(held_start, wanted_start), min(held_stop, wanted_stop)
        if start < stop:
            a, b = in_held + start - held_start, in_wanted + start - wanted_start
            size = stop - start
            if found and (found[-1][0].stop, found[-1][1].stop) == (a, b):
                before, behind = found.pop()
                a, b, size = before.start, behind.start, size + a - before.start
            found.append((slice(a, a + size), slice(b, b + size)))
        if held_stop <= wanted_stop:
            i, in_held = i + 1, in_held + held_stop - held_start
        else:
            j, in_wanted = j + 1, in_wanted + wanted_stop - wanted_start
    return tuple(found)


def _regions(
    dims: Sequence[Sequence[tuple[slice, slice]]],
) -> tuple[tuple[Region, ...], tuple[Region, ...]]:
    blocks = list(product(*dims))
    taken = tuple(tuple(a for a, _ in block) for block in blocks)
    return taken, tuple(tuple(b for _, b in block) for block in blocks)


def _numel(regions: Sequence[Region]) -> int:
    return sum(prod(part.stop - part.start for part in region) for region in regions)
