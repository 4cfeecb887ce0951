"""The fastest arrangement of a form: its cut and the mesh of each stage.

Stages are chosen one after another, from the first. What is chosen bounds the step from
below, and where that is no less than what the best arrangement known takes, nothing
behind it is looked at. So the minimum over all cuts and meshes is exact: for stages
whose plans are the best ones for themselves, by the simulator's seconds.

The bounds. Let stage s take f forward and b backward for each of m microbatches, x
both, and p all stages in front of it together, with what is handed on. The first
microbatch reaches it after their forwards and the last leaves after their backwards:
p + m x. It holds no more than k microbatches at once (``Schedule.most_live``), so
before its first backward ends no more than k forwards were done; that is a round trip,
t = p + x + what the stages behind take. The rest follows: t + (m - 1) b + (m - k) f.
The same the other way round: t + (m - 1) f + (m - k) b. Where the backward is cut in
two, those behind it wait for the first part of it alone. The stages that are still to
be chosen take what their calls take at least (floors.py), and one of them its share.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import comb, inf, prod

import numpy as np

from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.search.arrangement import Arrangement, Form
from partita.compiler.search.floors import Floors, Parts
from partita.compiler.search.model import Floats
from partita.compiler.search.parts import Clock
from partita.compiler.search.pipeline_step import (
    Hop,
    PlacedStage,
    hops_to,
    step_seconds,
)
from partita.compiler.search.stage_cost import StageCost
from partita.compiler.search.stage_ends import StageEnds

_ROUNDING = 1e-12
"""Relative; what is no faster than that is not looked for."""

_HALVINGS = 40


class OutOfTime(Exception):
    """The clock ran out before all was looked at."""


@dataclass
class Best:
    """The best arrangement known, and that of each form that was tried.

    Attributes:
        seconds: what the best takes; a bound where there is none.
        of_form: by the name of a form, with its seconds.
        refused: the names of forms of which an arrangement had no plan.
    """

    arrangement: Arrangement | None = None
    seconds: float = inf
    of_form: dict[str, tuple[float, Arrangement]] = field(
        default_factory=dict[str, tuple[float, Arrangement]]
    )
    refused: dict[str, None] = field(default_factory=dict[str, None])

    def offer(self, arrangement: Arrangement, seconds: float) -> None:
        """Take note of an arrangement."""
        name = str(arrangement.form)
        if name not in self.of_form or seconds < self.of_form[name][0]:
            self.of_form[name] = seconds, arrangement
        if seconds < self.seconds * (1 - _ROUNDING):
            self.arrangement, self.seconds = arrangement, seconds


@dataclass(frozen=True)
class Stages:
    """What may be asked of the stages of a program.

    Attributes:
        num_calls: of its forward.
        floors: by mesh.
        cost: what a stage takes between two boundaries, on a mesh, with so many bytes
            for so many microbatches; ``None`` where it has no plan, or none is known
            that keeps a rank busy for less than the seconds given last.
        ends: what it takes and gives.
        hardware: that joins stages.
        limit: the bytes of a rank.
        homes: where along the line parameters to train are at home, in order. If there
            are any, every rank is to have one, as optimizers of torch want it.
        held: where parameters are used first, those too that are not trained; of them
            every rank is to have one where there are fewer to train than ranks.
        clock: when to come to an end.
    """

    num_calls: int
    floors: Mapping[Mesh, Floors]
    cost: Callable[[int, int, Mesh, int | None, int, float], StageCost | None]
    ends: Callable[[int, int], StageEnds]
    hardware: Hardware
    limit: int | None
    homes: tuple[int, ...]
    held: tuple[int, ...]
    clock: Clock


@dataclass(frozen=True)
class _Chosen:
    """The stages that are chosen, from the first on."""

    stages: tuple[PlacedStage, ...] = ()
    hops: tuple[Hop, ...] = ()
    ends: tuple[int, ...] = ()
    allowed: tuple[int | None, ...] = ()
    passed: float = 0.0


class Arranger:
    """Looks for the best arrangement of one form."""

    def __init__(
        self, form: Form, stages: Stages, best: Best, below_s: float = inf
    ) -> None:
        self.form = form
        self.stages = stages
        self.best = best
        self.below_s = below_s
        schedule = form.schedule
        self.ranks = form.ranks
        self.count = schedule.num_microbatches
        self.live = schedule.most_live
        self.is_cut = bool(schedule.cut)
        few = 0 < len(stages.homes) < len(schedule.rows)
        self.homes = stages.held if few else stages.homes

    def run(self) -> None:
        """Offer what takes less than the best known, and than ``below_s``.

        Raises:
            OutOfTime: when not all was looked at.
        """
        if self.stages.num_calls >= self.form.schedule.num_stages:
            self._descend(_Chosen())

    def offer(
        self, ends: tuple[int, ...], meshes: tuple[Mesh, ...], below_s: float = inf
    ) -> float:
        """Offer one arrangement; return its seconds, infinity where it has no plan.

        Nor where it takes no less than ``below_s``, as far as one stage tells; with 0
        nothing is searched within a limit, and what fits as it is has a plan.

        Raises:
            OutOfTime: when that is not known in time, and another one is known.
        """
        chosen: _Chosen | None = _Chosen()
        for end, mesh in zip(ends, meshes, strict=True):
            if self.stages.clock.left_s <= 0 and self.best.seconds < inf:
                raise OutOfTime
            chosen = self._with(chosen, end, mesh, below_s)
            if chosen is None:
                self.best.refused[str(self.form)] = None
                return inf
        return self._offer(chosen)

    def balanced(self) -> tuple[tuple[int, ...], tuple[Mesh, ...]] | None:
        """Return the cut whose slowest stage takes least, as calls take at least.

        With it the meshes on which all calls together take least.
        """
        last = self.stages.num_calls
        if last < self.form.schedule.num_stages:
            return None
        before = {
            mesh: self.stages.floors[mesh].before.sum(axis=0)
            for own in self.form.meshes
            for mesh in own
        }
        meshes = tuple(
            min(own, key=lambda mesh: float(before[mesh][-1]))
            for own in self.form.meshes
        )
        low, high = 0.0, max(float(before[mesh][-1]) for mesh in meshes)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            if _ends_within(middle, [before[mesh] for mesh in meshes]) is None:
                low = middle
            else:
                high = middle
        ends = _ends_within(high, [before[mesh] for mesh in meshes])
        return None if ends is None else (self.trained(ends), meshes)

    @property
    def least(self) -> float:
        """No arrangement takes less."""
        num = self.form.schedule.num_stages
        every, waited = (float(self.behind[part, 0]) for part in (0, 1))
        return max(waited, self.count * every / num)

    @property
    def num_cuts(self) -> int:
        """How many arrangements there are."""
        num = self.form.schedule.num_stages
        cuts = comb(max(self.stages.num_calls - 1, 0), num - 1)
        return cuts * prod(len(own) for own in self.form.meshes)

    @cached_property
    def behind(self) -> Floats:
        """By boundary the least of all calls behind: all, what is waited for."""
        meshes = {mesh for own in self.form.meshes for mesh in own}
        steps = np.min(
            [np.diff(self.stages.floors[mesh].before, axis=1) for mesh in meshes],
            axis=0,
        )
        waited = steps[0] + steps[1] if self.is_cut else steps.sum(axis=0)
        found = np.zeros((2, steps.shape[1] + 1))
        for part, along in enumerate((steps.sum(axis=0), waited)):
            found[part, :-1] = np.cumsum(along[::-1])[::-1]
        return found

    @property
    def _most_s(self) -> float:
        """What takes no less is not looked for."""
        return min(self.best.seconds, self.below_s)

    def _descend(self, chosen: _Chosen) -> None:
        number = len(chosen.ends)
        if number == self.form.schedule.num_stages:
            self._offer(chosen)
            return
        begin = chosen.ends[-1] if chosen.ends else 0
        for end in self._ends(number, begin):
            for mesh in self.form.meshes[number]:
                least = self.stages.floors[mesh].of_stage(begin, end)
                if self._is_pruned(number, least, end, chosen.passed):
                    continue
                if self.stages.clock.left_s <= 0:
                    raise OutOfTime
                if not self._may_close(number, end):
                    break
                # the only microbatch keeps a rank waiting until it is back
                waited_s = float(self.behind[1, end]) if self.count == 1 else 0.0
                more = self._with(chosen, end, mesh, self._most_s - waited_s)
                if more is None:
                    continue
                parts = Parts.of(more.stages[-1].cost)
                passed = more.passed - self._waited(parts)
                if not self._is_pruned(number, parts, end, passed):
                    self._descend(more)

    def _ends(self, number: int, begin: int) -> Iterator[int]:
        """Yield where a stage may end, first where it has its share of what is left."""
        left = self.form.schedule.num_stages - 1 - number
        last = self.stages.num_calls
        if left == 0:
            yield last
            return
        share = self.behind[0, begin] * left / (left + 1)
        ends = range(begin + 1, last + 1 - left)
        yield from sorted(ends, key=lambda end: abs(self.behind[0, end] - share))

    def _may_close(self, number: int, end: int) -> bool:
        """Whether the last stage has a plan, where it is next.

        It is the same whatever is in front: there are few of them.
        """
        schedule, last = self.form.schedule, self.stages.num_calls
        if not number + 2 == schedule.num_stages == len(schedule.rows):
            return True
        rest = self.stages.limit, self.live[-1], self._most_s
        costs = (self.stages.cost(end, last, m, *rest) for m in self.form.meshes[-1])
        return any(cost is not None for cost in costs)

    def _waited(self, parts: Parts) -> float:
        """Return what other stages wait for."""
        return parts.all - parts.rest if self.is_cut else parts.all

    def _is_pruned(self, number: int, parts: Parts, end: int, passed: float) -> bool:
        """Whether no step with this stage takes as little as is looked for.

        ``passed`` is what the stages in front take, and all that is handed on.
        """
        m, left = self.count, self.form.schedule.num_stages - 1 - number
        one, own = self._waited(parts), parts.all
        back = one - parts.forward
        trip = passed + one + float(self.behind[1, end])
        more = max(0, m - self.live[number])
        bounds = [
            trip + (m - 1) * back + more * parts.forward,
            trip + (m - 1) * parts.forward + more * back,
            passed + m * one,
            m * own,
        ]
        if left:
            bounds.append(passed + one + m * float(self.behind[1, end]) / left)
            bounds.append(m * float(self.behind[0, end]) / left)
        return max(bounds) >= self._most_s * (1 - _ROUNDING)

    def _with(
        self, chosen: _Chosen, end: int, mesh: Mesh, below_s: float
    ) -> _Chosen | None:
        """Return what is chosen with one more stage, if that has a plan.

        A row is busy with its stages one after another, in less than ``below_s``.
        """
        number = len(chosen.ends)
        begin = chosen.ends[-1] if chosen.ends else 0
        if self.homes and not self._trains((*chosen.ends, end)):
            return None
        ends = self.stages.ends(begin, end)
        allowed = self._allowed(chosen)
        below_s -= sum(stage.cost.busy_s(self.count) for _, stage in self._row(chosen))
        cost = self.stages.cost(begin, end, mesh, allowed, self.live[number], below_s)
        if cost is None:
            return None
        stage = PlacedStage(cost, ends, mesh, self.ranks[number])
        stages = (*chosen.stages, stage)
        hops = hops_to(stages, number, self.stages.hardware)
        handed = sum(hop.seconds for hop in hops if hop.kind.is_of_microbatch)
        return _Chosen(
            stages,
            (*chosen.hops, *hops),
            (*chosen.ends, end),
            (*chosen.allowed, allowed),
            chosen.passed + handed + self._waited(Parts.of(cost)),
        )

    def _trains(self, ends: tuple[int, ...]) -> bool:
        """Whether all rows can have what they are to, if these are the first ends."""
        rows = self.form.schedule.rank_of
        begins = (0, *ends[:-1])
        train = {
            row
            for row, begin, end in zip(rows, begins, ends, strict=False)
            if self._at_home(begin, end)
        }
        waiting = {*rows} - train
        is_open = waiting <= {*rows[len(ends) :]}
        left = self._at_home(ends[-1], self.stages.num_calls)
        return is_open and len(waiting) <= left

    def _at_home(self, begin: int, end: int) -> int:
        """Return at how many places between two boundaries parameters are at home."""
        return bisect_left(self.homes, end) - bisect_left(self.homes, begin)

    def trained(self, ends: tuple[int, ...]) -> tuple[int, ...]:
        """Return ends near those given between which every stage has to train.

        They are as given where there are fewer places to train at than stages.
        """
        homes, num = self.homes, len(ends)
        if len(homes) < num:
            return ends
        found, begin = list[int](), 0
        for number, end in enumerate(ends[:-1]):
            least = homes[bisect_left(homes, begin)] + 1
            most = homes[number - num + 1]
            begin = min(max(end, least), most)
            found.append(begin)
        return (*found, ends[-1])

    def _allowed(self, chosen: _Chosen) -> int | None:
        """Return what the other stages of its row leave the next one."""
        if self.stages.limit is None:
            return None
        row = self._row(chosen)
        return self.stages.limit - sum(s.cost.bytes(self.live[n]) for n, s in row)

    def _row(self, chosen: _Chosen) -> list[tuple[int, PlacedStage]]:
        """Return the other stages on the ranks of the next one, with their numbers."""
        rows = self.form.schedule.rank_of
        row = rows[len(chosen.stages)]
        return [(n, s) for n, s in enumerate(chosen.stages) if rows[n] == row]

    def _offer(self, chosen: _Chosen) -> float:
        seconds = step_seconds(self.form.schedule, chosen.stages, chosen.hops)
        meshes = tuple(stage.mesh for stage in chosen.stages)
        arrangement = Arrangement(self.form, chosen.ends, meshes, chosen.allowed)
        self.best.offer(arrangement, seconds)
        return seconds


def _ends_within(bound: float, before: Sequence[Floats]) -> tuple[int, ...] | None:
    """Return a cut into stages of no more seconds than ``bound``, given those of each.

    Every stage takes as many calls as it can.
    """
    last = len(before[0]) - 1
    begin, ends = 0, list[int]()
    for number, own in enumerate(before):
        left = len(before) - 1 - number
        end = int(np.searchsorted(own, own[begin] + bound, "right")) - 1
        begin = min(max(end, begin + 1), last - left)
        ends.append(begin)
    return tuple(ends) if begin == last else None
