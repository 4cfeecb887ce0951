"""The pipelines of one number of microbatches: their forms, and first cuts of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import inf

from partita.compiler.errors import NoSolution
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.search.arrange import Arranger, Best, OutOfTime, Stages
from partita.compiler.search.arrangement import Form
from partita.compiler.search.candidates import Candidates
from partita.compiler.search.floors import Floors
from partita.compiler.search.parts import Clock
from partita.compiler.search.rearrange import Place
from partita.compiler.search.stage_cost import StageCost
from partita.compiler.search.wanted import ANY, ROUGH, Wanted
from partita.one_mesh.planner import Planner
from partita.one_mesh.search import Search
from partita.one_mesh.ways_out import batch_of
from partita.pipelines.outlines import Outlines
from partita.pipelines.pipeline_space import PipelineSpace
from partita.pipelines.stage_plans import Room, StagePlans
from partita.pipelines.staged import SINGLE
from partita.pipelines.whole_prices import WholePrices

_CUTTING = 0.75
"""Of the time left, for the first cuts of one number of microbatches."""
_MOST_SIZES = 8
"""Of rows; the time for prices of one stage is in so many parts."""


class _ByMesh(dict[Mesh, Floors]):
    """Floors that are found when they are asked for."""

    def __init__(self, find: Callable[[Mesh], Floors]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, mesh: Mesh) -> Floors:
        self[mesh] = found = self._find(mesh)
        return found


@dataclass
class Cutter:
    """The pipelines of one number of microbatches."""

    planner: Planner
    space: PipelineSpace
    clock: Clock
    refusals: list[NoSolution] = field(default_factory=list[NoSolution])

    @property
    def count(self) -> int:
        """The number of microbatches."""
        return self.planner.captured.program.in_time.count

    @cached_property
    def plans(self) -> StagePlans:
        """Plans of its stages."""
        return StagePlans.of(self.planner, self.clock)

    @cached_property
    def forms(self) -> list[Form]:
        """What is decided before the cut; each row has a call at least."""
        return self.space.forms(self.count, len(self.plans.line.forward))

    def try_cuts(self, best: Best) -> None:
        """Offer the cut of each form that prices of one stage are least for.

        Rows of several sizes are left out, and forms that take no less than the best
        known even if all ranks share all calls evenly. A part of the time is for that.
        What fits as it is comes first: within a limit what is slower is not searched,
        and the rest is searched roughly, to know what to beat.
        """
        clock = Clock.of(_CUTTING * self.clock.left_s)
        forms = sorted(filter(_is_even, self.forms), key=self.hoped)
        prices: dict[int, WholePrices] = {}
        tight: list[tuple[Form, Place]] = []
        for form in forms:
            if self.hoped(form) >= best.seconds:
                break
            if clock.left_s <= 0 and best.seconds < inf:
                break
            size = form.sizes[0]
            if size not in prices:
                mesh = self.space.meshes[size][0]
                share = clock.share(1 / _MOST_SIZES)
                planner = replace(self.planner, mesh=mesh)
                free = replace(planner.options, memory=None)
                alone = Search(replace(planner, options=free), share).run()
                prices[size] = WholePrices(alone, self.plans.line)
            arranger = Arranger(form, self.stages(clock), best)
            place = self._cut(arranger, prices[size])
            if place is None:
                continue
            with suppress(OutOfTime):
                if arranger.offer(*place, below_s=0.0) == inf:
                    tight.append((form, place))
        for form, place in tight:
            if self.hoped(form) < best.seconds:
                rough = Arranger(form, self.stages(clock, ROUGH), best)
                with suppress(OutOfTime):
                    rough.offer(*place, below_s=best.seconds)

    def outline(self, best: Best) -> None:
        """Offer the best of the forms that are outlined."""
        batch = batch_of(self.planner.captured.inputs.leaves)
        stages = self.stages(Clock.of(_CUTTING * self.clock.left_s))
        alone_s = self._alone_s
        Outlines(self.plans, self.space, self.count, stages, alone_s, batch).offer(best)

    def hoped(self, form: Form) -> float:
        """Return what a form may be hoped to take: no bound, but seldom more."""
        schedule, rows = form.schedule, len(form.sizes)
        own = self._alone_s / sum(form.sizes)
        filling = (rows - 1) * rows / schedule.num_stages
        if schedule.cut:  # what nobody waits for is a third, and fills the rest
            filling /= 3
        return own * (schedule.num_microbatches + filling)

    @cached_property
    def _alone_s(self) -> float:
        """What the calls of one microbatch take at least on one rank."""
        return float(self._floor(SINGLE).before[:, -1].sum())

    def _cut(self, arranger: Arranger, prices: WholePrices) -> Place | None:
        """Return the cut of a form that prices of one stage are least for."""
        form, limit = arranger.form, self.planner.limit
        schedule = form.schedule
        per_row = schedule.num_stages // len(form.sizes)
        try:
            cut = prices.cut(schedule.most_live, limit, per_row)
        except NoSolution as refusal:
            self.refusals.append(refusal)
            return None
        stages = [*cut.stage_of_forward.values()]
        ends = [at for at in range(1, len(stages)) if stages[at - 1] < stages[at]]
        meshes = tuple(own[0] for own in form.meshes)
        return arranger.trained((*ends, len(stages))), meshes

    def arrangers(
        self, best: Best, clock: Clock, wanted: Wanted = ANY
    ) -> list[Arranger]:
        """Return what looks for the best arrangement of each form that is wanted."""
        stages = self.stages(clock, wanted)
        below_s = wanted.below_s
        return [Arranger(form, stages, best, below_s) for form in self.forms]

    @cached_property
    def _floors(self) -> _ByMesh:
        return _ByMesh(self._floor)

    def _floor(self, mesh: Mesh) -> Floors:
        options, line = self.planner.options, self.plans.line
        if options.fuse:  # a group may take less than its calls
            return Floors.none(line)
        captured, known = self.planner.captured, self.planner.known
        candidates = Candidates(
            captured.program.with_mesh(mesh),
            options.rules,
            mesh,
            load_hardware(options.hardware),
            known=known.get(mesh),
            reading=captured.reading,
        )
        known[mesh] = candidates.known
        return Floors.of(line, candidates)

    def stages(self, clock: Clock, wanted: Wanted = ANY) -> Stages:
        """Return what may be asked of the stages until a time."""
        return Stages(
            len(self.plans.line.forward),
            self._floors,
            partial(self._cost, wanted),
            lambda begin, end: self.plans.program(begin, end).ends,
            load_hardware(self.planner.options.hardware),
            self.planner.limit,
            self.plans.homes,
            self.plans.held,
            clock,
        )

    def _cost(
        self,
        wanted: Wanted,
        begin: int,
        end: int,
        mesh: Mesh,
        allowed: int | None,
        live: int,
        below_s: float,
    ) -> StageCost | None:
        room = None if allowed is None else Room(allowed, live)
        found = self.plans.cost(begin, end, mesh, room, wanted.less_than(below_s))
        if found is None:
            self.refusals += self.plans.refusals
            self.plans.refusals.clear()
        return found


def _is_even(form: Form) -> bool:
    """Whether all rows have one size."""
    return len(set(form.sizes)) == 1
