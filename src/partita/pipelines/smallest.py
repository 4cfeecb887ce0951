"""The pipeline that needs least, where none was found that keeps to the limit.

Of every form a cut is looked at whose stages take about as long as each other. Each of
its stages needs what the plan of it does that needs least; a rank, what all of its
stages need together. From the neediest stage of the best cut, calls are handed to its
neighbours as long as that helps. That the cut then has a plan is tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from partita.compiler.search.arrange import Arranger, Best
from partita.compiler.search.arrangement import Arrangement
from partita.compiler.search.parts import Clock
from partita.compiler.search.rearrange import Place
from partita.compiler.search.wanted import ROUGH
from partita.pipelines.cutter import Cutter


@dataclass(frozen=True)
class _Cut:
    """A cut of a form, and the bytes that its stages need."""

    cutter: Cutter
    arranger: Arranger
    place: Place
    bytes: tuple[int, ...]

    @property
    def needed(self) -> int:
        """The bytes of the rank that needs most."""
        schedule = self.arranger.form.schedule
        rows = dict.fromkeys(range(len(schedule.rows)), 0)
        for row, size in zip(schedule.rank_of, self.bytes, strict=True):
            rows[row] += size
        return max(rows.values())

    @property
    def neediest(self) -> int:
        """The stage that needs most."""
        return max(range(len(self.bytes)), key=self.bytes.__getitem__)


@dataclass(frozen=True)
class Smallest:
    """The arrangement that needs least, of those looked at, and the bytes of a rank."""

    arrangement: Arrangement
    seconds: float
    bytes: int


def smallest_found(cutters: Sequence[Cutter], clock: Clock) -> Smallest | None:
    """Return what needs least of the pipelines that are looked at, if one has a plan.

    Args:
        cutters: of each number of microbatches.
        clock: when to come to an end.
    """
    cuts = [cut for cutter in cutters for cut in _evenly(cutter, clock)]
    if not cuts:
        return None
    best = _lessened(min(cuts, key=lambda cut: cut.needed), clock)
    found, limit = None, best.needed
    while (planned := _planned(best, limit, clock)) is not None:
        found = replace(planned, bytes=limit)
        if planned.bytes >= limit or clock.left_s <= 0:
            break
        limit = planned.bytes
    return found


def _evenly(cutter: Cutter, clock: Clock) -> Iterator[_Cut]:
    """Yield a cut of each form, the first at least."""
    for number, arranger in enumerate(cutter.arrangers(Best(), clock)):
        if number and clock.left_s <= 0:
            return
        place = arranger.balanced()
        if place is not None:
            yield from _needing(cutter, arranger, place[0], clock)


def _needing(
    cutter: Cutter, arranger: Arranger, ends: tuple[int, ...], clock: Clock
) -> Iterator[_Cut]:
    """Yield a cut with what it needs, on the meshes that need least.

    It is not known where there was no time to find it.
    """
    form = arranger.form
    begins, meshes, found = (0, *ends[:-1]), [], []
    for begin, end, own, live in zip(
        begins, ends, form.meshes, form.schedule.most_live, strict=True
    ):
        least = [(cutter.plans.least_bytes(begin, end, m, live, clock), m) for m in own]
        known = [(size, mesh) for size, mesh in least if size is not None]
        if not known:
            return
        size, mesh = min(known, key=lambda pair: pair[0])
        meshes.append(mesh)
        found.append(size)
    yield _Cut(cutter, arranger, (ends, tuple(meshes)), tuple(found))


def _planned(cut: _Cut, limit: int, clock: Clock) -> Smallest | None:
    """Return a cut as it is planned within a limit; ``None`` if it has no plan."""
    stages, best = replace(cut.cutter.stages(clock, ROUGH), limit=limit), Best()
    Arranger(cut.arranger.form, stages, best).offer(*cut.place)
    if best.arrangement is None:
        return None
    begins, live = (0, *cut.place[0][:-1]), cut.arranger.live
    found = zip(begins, *cut.place, best.arrangement.allowed, live, strict=True)
    costs = [stages.cost(*stage, inf) for stage in found]
    sizes = (c.bytes(n) for c, n in zip(costs, live, strict=True) if c is not None)
    needed = replace(cut, bytes=tuple(sizes)).needed
    return Smallest(best.arrangement, best.seconds, needed)


def _lessened(cut: _Cut, clock: Clock) -> _Cut:
    """Return a cut that needs less, near by."""
    ends = cut.place[0]
    calls = ends[-1] // (2 * len(ends))
    while calls and clock.left_s > 0:
        others = [
            other
            for moved in shorter(cut.place[0], cut.neediest, calls)
            if cut.arranger.trained(moved) == moved
            for other in _needing(cut.cutter, cut.arranger, moved, clock)
        ]
        best = min(others, key=lambda other: other.needed, default=cut)
        if best.needed < cut.needed:
            cut = best
        else:
            calls //= 2
    return cut


def shorter(
    ends: tuple[int, ...], number: int, calls: int
) -> Iterator[tuple[int, ...]]:
    """Yield boundaries between which a stage has so many calls less.

    >>> list(shorter((4, 8, 12), 1, 2))
    [(6, 8, 12), (4, 6, 12)]
    """
    begin = ends[number - 1] if number else 0
    if ends[number] - begin <= calls:
        return
    if number:
        yield (*ends[: number - 1], begin + calls, *ends[number:])
    if number < len(ends) - 1:
        yield (*ends[:number], ends[number] - calls, *ends[number + 1 :])
