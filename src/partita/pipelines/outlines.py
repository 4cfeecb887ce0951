"""Pipelines of a model that is too large to be planned as one stage on every mesh.

Of such a model on thousands of ranks even a first cut of each form takes longer than
there is. So forms are outlined first: rows of one mesh each, whose ranks have equal
parts of a microbatch, and whose inner axis stays within a node. In the order of what
they may be hoped to take, a short stretch of the model is planned on the mesh of each.
What the outline is estimated to take follows from that, and whether it fits. The best
of those that can be planned in time is cut where least is handed over, as evenly as
its calls take at least, and offered.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, log2

import numpy as np

from partita.compiler.capture.capture import Captured
from partita.compiler.ir.mesh import Mesh
from partita.compiler.search.arrange import Arranger, Best, OutOfTime, Stages
from partita.compiler.search.arrangement import Form
from partita.compiler.search.cut_bounds import Cutter as LineCutter
from partita.compiler.search.floors import Parts
from partita.compiler.search.model import Floats, Ints
from partita.one_mesh.ways_out import batch_of
from partita.pipelines.pipeline_space import PipelineSpace
from partita.pipelines.stage_plans import Room, StagePlans

_WHOLE_S = 1e-3
"""For a call of a plan of the whole model as one stage, without a memory limit."""
_PLANNED_S = 1.3e-2
"""For a call of a stage's plan, within a memory limit. Both guess whether time will do;
measured on 47 calls of a layer of GPT-3, forward and backward, and on 96 layers."""
_UNLIKE = 3
"""So many stages of a pipeline are not like another: the ends, and one between."""
_PART = 0.25
"""Of the time there is; numbers of microbatches come first with which stages that can
be planned in that do well."""
_MOST_PROBED = 3
_PROBED_CALLS = 40
_BOUNDARIES = 2
"""By stage, at so many places the line may be cut."""


@dataclass(frozen=True)
class Outline:
    """Rows of so many ranks, whose stages all have one mesh."""

    mesh: Mesh
    sizes: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return len(self.sizes)


def are_too_many(space: PipelineSpace, num_calls: int, seconds: float) -> bool:
    """Whether planning the model as one stage on each row's ranks takes too long."""
    sizes = {size for sizes in space.sizes for size in sizes}
    is_open = any(len(space.meshes[size]) > 1 for size in sizes)
    return is_open and _WHOLE_S * num_calls * len(sizes) > seconds


def planning_s(num_calls: int, num_rows: int) -> float:
    """Return a guess at what planning the stages of so many rows takes."""
    return _PLANNED_S * num_calls * min(_UNLIKE / num_rows, 1.0)


def is_natural(mesh: Mesh, count: int, batch: int, node: int | None) -> bool:
    """Whether ranks have equal parts of a microbatch, and inner axes are in a node.

    >>> is_natural(Mesh(dp=6, tp=8), 256, 1536, 8)
    True
    >>> is_natural(Mesh(dp=12, tp=8), 256, 1536, 8)
    False
    """
    inner = mesh.size // mesh.sizes[0]
    return batch % (mesh.sizes[0] * count) == 0 and (not node or node % inner == 0)


def counts_in_order(
    captured: Captured, space: PipelineSpace, node: int | None, seconds: float
) -> list[int]:
    """Return the numbers of microbatches to try in so many seconds, the best first.

    They are those that the batch can be cut into: first those that give each row a
    few, or, where forms are outlined, those that leave ranks waiting least. That is of
    rows that can be planned in a part of the time, on natural meshes.
    """
    batch = batch_of(captured.inputs.leaves)
    divisors = [count for count in range(1, batch + 1) if batch % count == 0]
    counts = [count for count in divisors if count <= space.most_microbatches]
    num_calls = sum(1 for _ in captured.program.calls())
    if not are_too_many(space, num_calls, seconds):
        rows = max(map(len, space.sizes))
        return sorted(counts, key=lambda count: abs(log2(count / (2 * rows))))
    even = [sizes for sizes in space.sizes if len({*sizes}) == 1]
    quick = [s for s in even if planning_s(num_calls, len(s)) <= _PART * seconds]

    def waiting(count: int) -> float:
        found = [
            (len(sizes) - 1) / count
            for sizes in quick or even
            if space.is_tried(len(sizes), count)
            and any(is_natural(m, count, batch, node) for m in space.meshes[sizes[0]])
        ]
        return min(found, default=inf)

    return sorted(counts, key=waiting)


@dataclass(frozen=True)
class _Estimated:
    outline: Outline
    fits: bool
    seconds: float


@dataclass
class Outlines:
    """The outlines of one number of microbatches.

    Attributes:
        plans: of stages.
        space: what may be chosen.
        count: the number of microbatches.
        stages: what may be asked of them, until its clock runs out.
        alone_s: what all calls take on one rank, for one microbatch.
        batch: how many samples a batch has.
    """

    plans: StagePlans
    space: PipelineSpace
    count: int
    stages: Stages
    alone_s: float
    batch: int
    _known: dict[tuple[int, ...], list[Form]] = field(
        default_factory=dict[tuple[int, ...], list[Form]]
    )

    def offer(self, best: Best) -> None:
        """Offer the best that can be planned in time; of these the fastest alone."""
        for found in sorted(
            self._estimated(best), key=lambda e: (not e.fits, e.seconds)
        ):
            if self._is_too_long(found.outline) and best.seconds < inf:
                continue
            with suppress(OutOfTime):
                if self._offer(found.outline, best) < inf:
                    return

    def _offer(self, outline: Outline, best: Best) -> float:
        """Offer the arrangement of an outline under each of its schedules."""
        ends = self._ends(outline)
        took = inf
        for form in self._forms(outline):
            arranger = Arranger(form, self.stages, best)
            meshes = (outline.mesh,) * form.schedule.num_stages
            took = min(took, arranger.offer(arranger.trained(ends), meshes))
        return took

    def _estimated(self, best: Best) -> list[_Estimated]:
        """Return what some outlines are estimated to take, the most hopeful ones."""
        found: list[_Estimated] = []
        every = self._natural()
        if not every and best.seconds == inf:
            every = [*self._even()]
        outlines = [o for o in every if not self._is_too_long(o)]
        if not outlines and every and best.seconds == inf:
            outlines = [min(every, key=self._promise)]
        for outline in sorted(outlines, key=self._promise)[:_MOST_PROBED]:
            least = min((e.seconds for e in found if e.fits), default=best.seconds)
            is_late = self._is_too_long(outline) and bool(found)
            if is_late or self._hoped(outline) >= least:
                break
            estimated = self._estimate(outline)
            if estimated is not None:
                found.append(estimated)
        return found

    def _is_too_long(self, outline: Outline) -> bool:
        num_calls = len(self.plans.line.position)
        return planning_s(num_calls, outline.num_rows) > self.stages.clock.left_s

    def _natural(self) -> list[Outline]:
        """Return rows of equal size on each mesh that is natural for them."""
        node = self.stages.hardware.devices_per_node
        return [
            outline
            for outline in self._even()
            if is_natural(outline.mesh, self.count, self.batch, node)
        ]

    def _even(self) -> Iterator[Outline]:
        """Yield rows of equal size on each of their meshes."""
        for sizes in self.space.sizes:
            is_even = len({*sizes}) == 1
            has_calls = len(sizes) <= self.stages.num_calls
            is_tried = self.space.is_tried(len(sizes), self.count)
            if not (is_even and has_calls and is_tried):
                continue
            for mesh in self.space.meshes[sizes[0]]:
                yield Outline(mesh, sizes)

    def _forms(self, outline: Outline) -> list[Form]:
        """Return it with each of the schedules that cut it into fewest stages.

        Those come first whose backward is cut in two: it fills what ranks would wait.
        """
        if outline.sizes not in self._known:
            forms = self.space.forms_of(outline.sizes, self.count)
            least = min((f.schedule.num_stages for f in forms), default=0)
            most = self.stages.num_calls
            few = [f for f in forms if f.schedule.num_stages == least <= most]
            few.sort(key=lambda form: not form.schedule.cut)
            self._known[outline.sizes] = few
        return self._known[outline.sizes]

    def _hoped(self, outline: Outline) -> float:
        """Return what an outline takes if ranks share all calls evenly."""
        size = outline.mesh.size * outline.num_rows
        return self.alone_s / size * (self.count + outline.num_rows - 1)

    def _promise(self, outline: Outline) -> tuple[float, float]:
        """Return the order of outlines; of equal ones those that fill a node first."""
        inner = outline.mesh.size // outline.mesh.sizes[0]
        node = self.stages.hardware.devices_per_node or inner
        return self._hoped(outline), abs(log2(inner / node))

    def _estimate(self, outline: Outline) -> _Estimated | None:
        """Return what an outline takes if its stages are like a short stretch."""
        begin, end = self._stretch
        limit = self.stages.limit
        room = None if limit is None else Room(limit, 1)
        cost = self.plans.cost(begin, end, outline.mesh, room)
        if cost is None or not self._forms(outline):
            return None
        floors = self.stages.floors[outline.mesh]
        own, every = (floors.of_stage(*p).all for p in ((begin, end), self._line))
        share = every / own / outline.num_rows if own > 0 else 1.0
        one = Parts.of(cost).all
        times = self.count + outline.num_rows - 1
        once = cost.before_s + cost.after_s
        live = min(max(f.schedule.most_live) for f in self._forms(outline))
        held = share * cost.bytes(live)
        fits = limit is None or held <= limit
        return _Estimated(outline, fits, share * (one * times + once))

    @property
    def _line(self) -> tuple[int, int]:
        return 0, self.stages.num_calls

    @cached_property
    def _stretch(self) -> tuple[int, int]:
        """A stretch in the middle of the line that begins and ends where it is thin."""
        thin = self._thin(self.stages.num_calls // _PROBED_CALLS + 1)
        begin = int(thin[max(np.searchsorted(thin, self._line[1] // 2) - 1, 0)])
        after = np.searchsorted(thin, begin + _PROBED_CALLS)
        return begin, int(thin[min(after, len(thin) - 1)])

    def _thin(self, num_stages: int) -> Ints:
        """Return the boundaries at which least is handed over, enough for the stages.

        Both ends of the line are among them.
        """
        inner = np.array(self.plans.line.hop_bytes[1 : self._line[1]])
        wanted = min(_BOUNDARIES * num_stages, len(inner))
        most = np.sort(inner)[wanted - 1] if wanted else 0
        return np.array([0, *(np.flatnonzero(inner <= most) + 1), self._line[1]])

    def _ends(self, outline: Outline) -> tuple[int, ...]:
        """Return the most even cut at boundaries that are thin."""
        num_stages = self._forms(outline)[0].schedule.num_stages
        thin = self._thin(num_stages)
        before: Floats = self.stages.floors[outline.mesh].before.sum(axis=0)[thin]
        anywhere = [np.zeros(len(thin), np.int64)] * num_stages
        cut = LineCutter(before, np.zeros(len(thin)), anywhere)
        chosen = cut.least(self.count)
        assert chosen is not None, "there are enough calls"
        return tuple(int(thin[end]) for end in chosen.ends)
