"""The best arrangement of random figures, against every arrangement of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import combinations, product
from math import inf
from typing import Any

import numpy as np
import pytest
import torch

from partita.compiler.hardware.profile import load_hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.stage_records import TransferKind
from partita.compiler.schedules.make import SCHEDULES, make_schedule
from partita.compiler.schedules.schedule import Schedule, Work
from partita.compiler.search.arrange import Arranger, Best, OutOfTime, Stages
from partita.compiler.search.arrangement import Form
from partita.compiler.search.floors import Floors
from partita.compiler.search.parts import Clock
from partita.compiler.search.rearrange import improve
from partita.compiler.search.stage_cost import (
    CLOSING,
    ClosingCost,
    StageCost,
    StageHeld,
)
from partita.compiler.search.stage_ends import StageEnds

MESHES = Mesh(dp=2), Mesh(tp=2)
TYPE = TensorType((1000,), torch.float32)
Place = tuple[tuple[int, ...], tuple[Mesh, ...]]


class Figures:
    """Random figures of the stages of a line."""

    def __init__(self, seed: int, num_calls: int, limit: int | None = None) -> None:
        self.seed, self.num_calls, self.limit = seed, num_calls, limit
        self.homes: tuple[int, ...] = ()
        self.held: tuple[int, ...] = ()
        self.count = 0  # of microbatches; then it tells no stage that is too slow
        rng = np.random.default_rng(seed)
        self.least = {
            mesh: rng.integers(0, 4, (3, num_calls)) * 1e-4 for mesh in MESHES
        }

    def cost(
        self,
        begin: int,
        end: int,
        mesh: Mesh,
        allowed: int | None,
        live: int,
        below_s: float = inf,
    ) -> StageCost | None:
        found = self.made(begin, end, mesh)
        if found is None or (allowed is not None and found.bytes(live) > allowed):
            return None
        is_slow = found.busy_s(self.count) >= below_s
        return None if self.count and is_slow else found

    def made(self, begin: int, end: int, mesh: Mesh) -> StageCost | None:
        """Return the figures of a stage; some have none."""
        return self._drawn(begin, end, mesh)

    @cache  # noqa: B019 - lives as long as a test
    def _drawn(self, begin: int, end: int, mesh: Mesh) -> StageCost | None:
        rng = random.Random(str((self.seed, begin, end, mesh)))
        least = self.least[mesh][:, begin:end].sum(axis=1)
        forward, waited, rest = (float(s) + rng.choice([0, 0, 1e-4]) for s in least)
        seconds = {
            Work.FORWARD: forward,
            Work.BACKWARD_INPUT: waited,
            Work.BACKWARD_WEIGHT: rest,
            Work.BACKWARD: waited + rest,
        }
        once = rng.choice([0.0, 1e-4]), rng.choice([0.0, 1e-4])
        held = rng.randint(1, 9) * (end - begin), rng.randint(0, 3)
        spread = Placement.parse(rng.choice(["(B,)", "(S(0),)"]))
        waited_s = 1e-4 * (self.seed % 2)
        closing = {w: ClosingCost(seconds[w], waited_s, once[1]) for w in CLOSING}
        ends = (spread,), (spread,)
        made = StageCost(seconds, *once, closing, StageHeld(*held, 0, {}, {}), *ends)
        return made if rng.random() < 0.95 else None

    def ends(self, begin: int, end: int) -> StageEnds:
        """Each stage hands one tensor on."""
        takes = {(TransferKind.FORWARD, str(begin)): (0, TYPE)} if begin else {}
        last = end == self.num_calls
        gives = {} if last else {(TransferKind.FORWARD, str(end)): 0}
        return StageEnds(takes, gives, {}, {})

    def stages(self, seconds: float = 1000.0) -> Stages:
        floors = {
            mesh: Floors(
                np.cumsum(np.pad(least, ((0, 0), (1, 0))), axis=1).astype(np.float64)
            )
            for mesh, least in self.least.items()
        }
        hardware = load_hardware("cpu-gloo")
        return Stages(
            self.num_calls,
            floors,
            self.cost,
            self.ends,
            hardware,
            self.limit,
            self.homes,
            self.held,
            Clock.of(seconds),
        )


def form_of(schedule: Schedule) -> Form:
    return Form(schedule, (2,) * len(schedule.rows), (MESHES,) * schedule.num_stages)


def places(form: Form, num_calls: int) -> Iterator[Place]:
    num = form.schedule.num_stages
    for inside in combinations(range(1, num_calls), num - 1):
        for meshes in product(*form.meshes):
            yield (*inside, num_calls), meshes


def least_of_all(form: Form, figures: Figures) -> float:
    every = Arranger(form, figures.stages(), Best())
    return min((every.offer(*p) for p in places(form, figures.num_calls)), default=inf)


@pytest.mark.parametrize("limit", [None, 30])
@pytest.mark.parametrize("name", SCHEDULES)
def test_the_best_of_all_arrangements_is_found(name: str, limit: int | None) -> None:
    rng = random.Random(name)
    for seed in range(12):
        rows, turns = rng.randint(1, 3), 1
        if name == "interleaved":
            rows, turns = rng.randint(1, 2), 2
        count = rows * rng.randint(1, 3) if turns > 1 else rng.randint(1, 6)
        figures = Figures(seed, rng.randint(rows * turns, 6), limit)
        form = form_of(make_schedule(name, rows, count, turns))
        best = Best()
        Arranger(form, figures.stages(), best).run()
        assert best.seconds == pytest.approx(least_of_all(form, figures), rel=1e-9)


@pytest.mark.parametrize(
    ("name", "count"),
    [*((n, 2) for n in SCHEDULES), *((n, 1) for n in SCHEDULES if n != "interleaved")],
)
def test_stages_that_keep_a_row_busy_too_long_are_not_missed(
    name: str, count: int
) -> None:
    """What is asked of a stage is to take less than the best leaves it."""
    rows, turns = 2, 1 + (name == "interleaved")
    form = form_of(make_schedule(name, rows, count, turns))
    asked: list[float] = []
    for seed in range(12):
        figures = Figures(seed, 6, 30)
        least = least_of_all(form, figures)
        figures.count, best = count, Best()
        stages = figures.stages()

        def cost(*stage: Any, cost: Any = stages.cost) -> StageCost | None:
            asked.append(stage[-1])
            return cost(*stage)

        Arranger(form, replace(stages, cost=cost), best).run()
        assert best.seconds == pytest.approx(least, rel=1e-9)
    assert len({*asked} - {inf}) > 12


def test_a_bound_beforehand_leaves_out_what_is_no_faster() -> None:
    figures, form = Figures(0, 6), form_of(make_schedule("1f1b", 3, 4))
    least = least_of_all(form, figures)
    best = Best(seconds=least)
    Arranger(form, figures.stages(), best).run()
    assert best.arrangement is None
    assert Arranger(form, figures.stages(), best).least <= least


def asked_within(form: Form, figures: Figures, below_s: float) -> dict[int, float]:
    """Return what first stages were to take less than, by end; the best is found."""
    figures.count = form.schedule.num_microbatches
    stages, best, asked = figures.stages(), Best(), dict[int, float]()

    def cost(begin: int, end: int, *rest: Any) -> StageCost | None:
        assert rest[-1] <= below_s
        if not begin:
            asked.setdefault(end, rest[-1])
        return stages.cost(begin, end, *rest)

    Arranger(form, replace(stages, cost=cost), best, below_s).run()
    figures.count = 0
    assert best.seconds == pytest.approx(least_of_all(form, figures), rel=1e-9)
    return asked


def test_what_takes_longer_than_is_asked_for_is_not_looked_for() -> None:
    figures, form = Figures(0, 6), form_of(make_schedule("1f1b", 3, 4))
    least = least_of_all(form, figures)
    assert asked_within(form, figures, 1.1 * least)
    best = Best()
    Arranger(form, figures.stages(), best, 0.5 * least).run()
    assert best.seconds > least


def test_the_only_microbatch_is_waited_for_until_it_is_back() -> None:
    figures, form = Figures(0, 6), form_of(make_schedule("1f1b", 3, 1))
    least = 1.5 * least_of_all(form, figures)
    behind = Arranger(form, figures.stages(), Best()).behind[1]
    asked = asked_within(form, figures, least)
    assert asked
    for end, below_s in asked.items():
        assert below_s <= least - behind[end] < least


def test_where_the_last_stage_has_no_plan_no_other_is_asked_for() -> None:
    figures, form = Figures(0, 6), form_of(make_schedule("1f1b", 2, 2))
    stages, asked = figures.stages(), set[tuple[int, int]]()

    def cost(begin: int, end: int, *rest: Any) -> StageCost | None:
        asked.add((begin, end))
        return stages.cost(begin, end, *rest) if end < 6 or begin > 3 else None

    Arranger(form, replace(stages, cost=cost), Best()).run()
    first = {end for begin, end in asked if not begin}
    assert first
    assert first <= {4, 5}


@pytest.mark.parametrize("limit", range(12, 40, 4))
def test_stages_of_a_row_fit_together(limit: int) -> None:
    figures = Figures(1, 6, limit=limit)
    form = form_of(make_schedule("interleaved", 2, 2, 2))
    best = Best()
    Arranger(form, figures.stages(), best).run()
    assert limit < 24 or best.arrangement is not None
    if best.arrangement is None:
        return
    found, held = best.arrangement, [0, 0]
    begins = (0, *found.ends)
    for number, end in enumerate(found.ends):
        live = form.schedule.most_live[number]
        allowed = found.allowed[number]
        cost = figures.cost(begins[number], end, found.meshes[number], allowed, live)
        assert cost is not None
        held[form.schedule.rank_of[number]] += cost.bytes(live)
    assert max(held) <= limit


def train(form: Form, homes: tuple[int, ...], ends: tuple[int, ...]) -> bool:
    """Whether parameters are at home in every row."""
    begins = (0, *ends)
    rows = {
        form.schedule.rank_of[number]
        for number, end in enumerate(ends)
        if any(begins[number] <= home < end for home in homes)
    }
    return len(rows) == len(form.schedule.rows)


@pytest.mark.parametrize("turns", [1, 2])
def test_every_row_has_something_to_train(turns: int) -> None:
    figures = Figures(1, 6)
    name = "1f1b" if turns == 1 else "interleaved"
    form = form_of(make_schedule(name, 2, 2, turns))
    free = Arranger(form, figures.stages(), Best())
    offered = [(p[0], free.offer(*p)) for p in places(form, figures.num_calls)]
    assert min(seconds for _, seconds in offered) < inf
    for figures.homes in ((0,), (5,), (0, 1), (2, 3), (0, 5), (1, 2, 4)):
        best, figures.held = Best(), figures.homes
        Arranger(form, figures.stages(), best).run()
        least = min(
            (s for ends, s in offered if train(form, figures.homes, ends)), default=inf
        )
        assert best.seconds == pytest.approx(least, rel=1e-9)


def test_every_row_holds_something_where_there_is_little_to_train() -> None:
    figures = Figures(1, 6)
    form = form_of(make_schedule("1f1b", 2, 2))
    free = Arranger(form, figures.stages(), Best())
    offered = [(p[0], free.offer(*p)) for p in places(form, figures.num_calls)]
    found = list[float]()
    for figures.homes, figures.held in (((5,), (2, 3, 5)), ((0,), (0, 1))):
        best = Best()
        Arranger(form, figures.stages(), best).run()
        least = min(s for ends, s in offered if train(form, figures.held, ends))
        assert best.seconds == pytest.approx(least, rel=1e-9)
        found.append(least)
    assert max(found) > min(seconds for _, seconds in offered)


def test_ends_are_moved_so_that_every_stage_trains() -> None:
    figures, rng = Figures(0, 12), random.Random(0)
    form = form_of(make_schedule("1f1b", 4, 2))
    for _ in range(200):
        figures.homes = tuple(sorted(rng.sample(range(12), rng.randint(4, 8))))
        arranger = Arranger(form, figures.stages(), Best())
        wanted = (*sorted(rng.sample(range(1, 12), 3)), 12)
        found = arranger.trained(wanted)
        assert sorted(set(found)) == list(found)
        assert found[-1] == 12
        assert train(form, figures.homes, found)
        if train(form, figures.homes, wanted):
            assert found == wanted


def test_ends_stay_where_there_is_too_little_to_train() -> None:
    figures, form = Figures(0, 12), form_of(make_schedule("1f1b", 4, 2))
    figures.homes = (0, 1, 2)
    arranger = Arranger(form, figures.stages(), Best())
    assert arranger.trained((3, 6, 9, 12)) == (3, 6, 9, 12)
    assert arranger.offer((3, 6, 9, 12), MESHES[:1] * 4) == inf


def test_moving_boundaries_ends_where_no_neighbour_is_faster() -> None:
    figures, form = Figures(3, 6), form_of(make_schedule("1f1b", 2, 4))
    best = Best()
    arranger = Arranger(form, figures.stages(), best)
    place = arranger.balanced()
    assert place is not None
    improve(arranger, place)
    assert best.arrangement is not None
    assert best.seconds <= arranger.offer(*place)
    ends, meshes = best.arrangement.ends, best.arrangement.meshes
    for end in (ends[0] - 1, ends[0] + 1):
        assert arranger.offer((end, ends[1]), meshes) >= best.seconds


def test_an_even_cut_takes_the_faster_mesh() -> None:
    figures, form = Figures(0, 6), form_of(make_schedule("1f1b", 3, 4))
    for mesh, seconds in zip(MESHES, (2.0, 1.0), strict=True):
        figures.least[mesh] = np.full((3, 6), seconds)
    found = Arranger(form, figures.stages(), Best()).balanced()
    assert found == ((2, 4, 6), (MESHES[1],) * 3)


def test_fewer_calls_than_stages_have_no_arrangement() -> None:
    figures, form = Figures(0, 2), form_of(make_schedule("1f1b", 3, 4))
    best = Best()
    arranger = Arranger(form, figures.stages(), best)
    arranger.run()
    assert best.arrangement is None
    assert arranger.balanced() is None


def test_the_end_of_the_time_is_told() -> None:
    figures, form = Figures(0, 6), form_of(make_schedule("1f1b", 3, 4))
    with pytest.raises(OutOfTime):
        Arranger(form, figures.stages(seconds=0.0), Best()).run()
