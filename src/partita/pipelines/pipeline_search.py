"""Search pipelines: cuts, meshes of stages, schedules, numbers of microbatches at once.

Every stage is planned by itself (stage_plans.py), and what a step takes is simulated
from the stages' own figures. First, for every form, the cut is tried that is best if
stages take what their calls do where the model is one stage. Then all cuts and meshes
are gone through, as long as there is time (compiler/search/arrange.py); within a
memory limit first those that take less than a bound, which is raised. Where none fits,
the one that needs least is looked for (smallest.py).

Of a model that is too large for that, forms are outlined (outlines.py), and the best
arrangement found of those is improved.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf

from partita.compiler.errors import NoSolution
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.search_result import SearchResult, Tried
from partita.compiler.search.arrange import Arranger, Best, OutOfTime
from partita.compiler.search.fitting import fitting
from partita.compiler.search.parts import Clock
from partita.compiler.search.rearrange import improve
from partita.compiler.search.wanted import ANY, ROUGH, Wanted
from partita.one_mesh.planner import Planner
from partita.one_mesh.too_large import too_large
from partita.pipelines.cutter import Cutter
from partita.pipelines.outlines import are_too_many
from partita.pipelines.pipeline_space import PipelineSpace
from partita.pipelines.smallest import smallest_found
from partita.pipelines.staged import arranged

ALL = "optimal, of stages planned by themselves"
"""Says in a plan that all cuts, meshes of stages and schedules were compared."""

NOT_SHOWN = "all compared, stages as they were found in the time there was"
"""Says that they were, with stages that may be faster, or fit after all."""

NOT_ALL = "not compared with all"
"""Says that they were not."""

_LOOKING = 0.8
"""Of the time limit; the stages of the best arrangement are put together at last."""
_MOST_CUTS = 1e12
"""Of a form with more cuts and meshes of stages not all are looked at."""
_FEW_STAGES = 2000
"""Where stages can be no more, looking at all has the time that is left."""
_RISING = 0.8
"""Of the time left, for all that takes less than a bound, which is raised."""
_RAISE = 1.2
"""Times the bound before."""
_MOST_RAISES = 20
_MOST_IMPROVED = 8
_MOVING = 0.75
"""Of the time left under a memory limit, for boundaries that fit and better ones."""
_FITTING = 0.5
"""Of that, for boundaries that fit at all."""
_ROUGHLY = 0.5
"""Of that time, for what is found of stages that are searched roughly."""
_PART = 0.05
"""Of the time limit: what looking at all cuts may take where the rest took less."""


@dataclass
class PipelineSearch:
    """The search for the plan of a pipeline.

    Attributes:
        programs: by number of microbatches, what plans the program of one; the next
            is asked for if there is time.
        space: what may be chosen.
        clock: the time there is.
        best: the best arrangement known.
    """

    programs: Iterable[Planner]
    space: PipelineSpace
    clock: Clock
    best: Best = field(default_factory=Best)

    def run(self) -> Plan:
        """Return the plan found.

        Raises:
            NoSolution: when none was found that keeps to the memory limit and is
                faster than the best known.
        """
        started, allowed_s = time.perf_counter(), self.clock.left_s
        clock = Clock.of(_LOOKING * allowed_s)
        cutters: list[Cutter] = []
        is_all, is_outlined, begun = True, False, time.perf_counter()
        for planner in self.programs:
            cutters.append(Cutter(planner, self.space, clock))
            making_s = time.perf_counter() - begun
            num_calls = len(cutters[-1].plans.line.position)
            is_outlined = are_too_many(self.space, num_calls, allowed_s)
            if is_outlined:
                cutters[-1].outline(self.best)
                making_s = time.perf_counter() - begun
            else:
                cutters[-1].try_cuts(self.best)
            if self.best.seconds < inf and clock.left_s <= making_s:
                is_all = False  # the next takes as long to write down
                break
            begun = time.perf_counter()
        if is_outlined:
            _improve_best(cutters, self.best, clock)
            is_all = False
        else:
            spent = time.perf_counter() - started
            is_all &= self._look_at_all(cutters, clock, max(spent, _PART * allowed_s))
        limit = cutters[0].planner.limit
        is_found = self.best.seconds < inf
        if limit is not None and not (is_found or is_outlined):
            self._take_smallest(cutters, limit)
            is_all = False
        if self.best.arrangement is None:
            raise self._refusal(cutters)
        count = self.best.arrangement.form.schedule.num_microbatches
        (cutter,) = (c for c in cutters if c.count == count)
        cutter.plans.clock = self.clock
        plan = arranged(cutter.plans, self.best.arrangement)
        status = ALL if all(c.plans.is_shown for c in cutters) else NOT_SHOWN
        status = status if is_all else NOT_ALL
        solver = f"{len(plan.stages)} stages: {plan.search.solver}"
        spent = time.perf_counter() - started
        return replace(
            plan, search=SearchResult(solver, status, None, spent, self.tried)
        )

    def _look_at_all(
        self, cutters: Sequence[Cutter], clock: Clock, wanted_s: float
    ) -> bool:
        """Improve what was found and look at the rest; whether there was time for all.

        So many seconds are for that, if there are as many left; all that are, where
        there is little to look at.
        """
        is_tight = cutters[0].planner.limit is not None
        is_few = _num_stages(cutters[0]) <= _FEW_STAGES
        if is_tight and is_few:
            rising = Clock.of(_RISING * clock.left_s)
            if _try_less_first(cutters, self.best, rising):
                return True
        share = min(clock.left_s, wanted_s)
        moving_s = _MOVING * clock.left_s if is_tight else share / 2
        if is_tight:
            _improve(cutters, self.best, Clock.of(_ROUGHLY * moving_s), ROUGH)
        _improve(cutters, self.best, Clock.of(moving_s))
        share = min(clock.left_s, share)
        is_found = self.best.arrangement is not None or self.best.seconds < inf
        if not is_found or is_few:
            share = clock.left_s
        return _try_all(cutters, self.best, Clock.of(share))

    def _take_smallest(self, cutters: Sequence[Cutter], limit: int) -> None:
        """Take what needs least, where nothing else was found that fits.

        Raises:
            NoSolution: when it does not fit either.
        """
        for cutter in cutters:
            cutter.plans.clock = self.clock
        smallest = smallest_found(cutters, self.clock)
        if smallest is not None and smallest.bytes > limit:
            raise too_large(limit, smallest.bytes, 0)
        if smallest is not None:
            self.best.offer(smallest.arrangement, smallest.seconds)

    def _refusal(self, cutters: Sequence[Cutter]) -> NoSolution:
        """Return why no pipeline was found."""
        if self.best.seconds < inf:
            return NoSolution("no pipeline is faster than a plan of one stage")
        plans, rows = cutters[0].plans, min(map(len, self.space.sizes))
        num = len(plans.held)
        if plans.homes and num < rows:
            places = "is 1 place" if num == 1 else f"are {num} places"
            return NoSolution(
                f"no pipeline was found: each of {rows} rows of ranks is to hold a "
                f"parameter, and there {places} in the model where one is used first; "
                "want fewer stages"
            )
        refusals = [refusal for cutter in cutters for refusal in cutter.refusals]
        if refusals:
            return min(refusals, key=lambda each: each.least_bytes or inf)
        return NoSolution("no pipeline was found")

    @property
    def tried(self) -> tuple[Tried, ...]:
        """What the best arrangement found of each form takes."""
        found = [Tried(name, best[0]) for name, best in self.best.of_form.items()]
        names = [n for n in self.best.refused if n not in self.best.of_form]
        return *found, *(Tried(name, None) for name in names)


def _improve(
    cutters: Sequence[Cutter], best: Best, clock: Clock, wanted: Wanted = ANY
) -> None:
    """Move the boundaries of the best arrangements of some forms, the fastest first.

    Forms that have none yet begin where calls are shared out evenly; or near to that,
    where that does not fit.
    """
    arrangers = [
        arranger
        for cutter in cutters
        for arranger in cutter.arrangers(best, clock, wanted)
        if cutter.hoped(arranger.form) < best.seconds
    ]
    for arranger in arrangers:
        if clock.left_s <= 0:
            break
        if str(arranger.form) not in best.of_form and arranger.least < best.seconds:
            place = arranger.balanced()
            if place is None:
                continue
            with suppress(OutOfTime):
                if best.arrangement is None:
                    improve(arranger, place)
                else:
                    arranger.offer(*place, below_s=best.seconds)
    if cutters[0].planner.limit is not None:
        _fit(cutters, best, Clock.of(_FITTING * clock.left_s), wanted)
    known = [(best.of_form.get(str(a.form)), a) for a in arrangers]
    found = sorted(
        ((*known, a) for known, a in known if known is not None),
        key=lambda each: each[0],
    )
    for _, arrangement, arranger in found[:_MOST_IMPROVED]:
        try:
            improve(arranger, (arrangement.ends, arrangement.meshes))
        except OutOfTime:
            break


def _improve_best(cutters: Sequence[Cutter], best: Best, clock: Clock) -> None:
    """Move the boundaries of the best arrangement, as long as there is time."""
    known = best.arrangement
    if known is None or clock.left_s <= 0:
        return
    count = known.form.schedule.num_microbatches
    (cutter,) = (c for c in cutters if c.count == count)
    arranger = Arranger(known.form, cutter.stages(clock), best)
    with suppress(OutOfTime):
        improve(arranger, (known.ends, known.meshes))


def _fit(cutters: Sequence[Cutter], best: Best, clock: Clock, wanted: Wanted) -> None:
    """Offer an arrangement that fits of each form that has none.

    Every number of microbatches has its share of the time for that.
    """
    for number, cutter in enumerate(cutters):
        share = Clock.of(clock.left_s / (len(cutters) - number))
        arrangers = cutter.arrangers(best, share, wanted)
        for arranger in sorted(arrangers, key=lambda arranger: arranger.least):
            is_known = str(arranger.form) in best.of_form
            place = None if is_known else arranger.balanced()
            if place is None or arranger.least >= best.seconds:
                continue
            with suppress(OutOfTime):
                near = fitting(arranger, place)
                if near is not None:
                    arranger.offer(arranger.trained(near[0]), near[1])


def _num_stages(cutter: Cutter) -> int:
    """Return how many stages there are of any length, on any mesh."""
    num_calls = len(cutter.plans.line.forward)
    every = {mesh for form in cutter.forms for own in form.meshes for mesh in own}
    return len(every) * num_calls * (num_calls + 1) // 2


def _try_less_first(cutters: Sequence[Cutter], best: Best, clock: Clock) -> bool:
    """Look at all arrangements, first at those that take less than a bound.

    The bound is raised until something is found. So no stage is searched that takes
    much longer than those of the best arrangement: within a limit that is what takes
    the time, and what is known before all stages were searched may be far from it.

    Returns whether all were looked at.
    """
    arrangers = (each for c in cutters for each in c.arrangers(best, clock))
    below_s = min((arranger.least for arranger in arrangers), default=inf)
    for _ in range(_MOST_RAISES):
        below_s *= _RAISE
        if below_s >= best.seconds:
            break
        if not _try_all(cutters, best, clock, ANY.less_than(below_s)):
            return False
    return _try_all(cutters, best, clock)


def _try_all(
    cutters: Sequence[Cutter], best: Best, clock: Clock, wanted: Wanted = ANY
) -> bool:
    """Look at all arrangements that are wanted, first those that may take least.

    Returns whether all were looked at: there was time, and there were not too many.
    What the stages of these are is shown to be the best, or not, from here on.
    """
    for cutter in cutters:
        cutter.plans.is_shown = True
    arrangers = [
        arranger
        for cutter in cutters
        for arranger in cutter.arrangers(best, clock, wanted)
        if arranger.num_cuts <= _MOST_CUTS
    ]
    is_all = len(arrangers) == sum(len(cutter.forms) for cutter in cutters)
    try:
        for arranger in sorted(arrangers, key=lambda arranger: arranger.least):
            arranger.run()
    except OutOfTime:
        return False
    return is_all
