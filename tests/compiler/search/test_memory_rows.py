"""A row of memory comes to what is held then, counted apart, at every moment."""

from __future__ import annotations

import random
from collections.abc import Collection

import pytest
import torch
from tests.compiler.search.all_ways import Memory, Run, key_of, possible
from tests.compiler.search.hand_made import RandomModel, Uneven, planner
from tests.compiler.search.small_problems import small

from partita.compiler.ir.mesh import Mesh
from partita.compiler.search.call_times import CallTimes
from partita.compiler.search.draw import draw_choices
from partita.compiler.search.fold import Fold
from partita.compiler.search.highs import make_highs, run_highs
from partita.compiler.search.holdings import find_holdings
from partita.compiler.search.keeping import keep
from partita.compiler.search.linear import value_of
from partita.compiler.search.memory_rows import MemoryRows
from partita.compiler.search.placement_program import PlacementProgram
from partita.compiler.search.pose import Posed
from partita.compiler.search.timed_uses import Maker
from partita.compiler.search.worthwhile import everything


def maker_of(memory: Memory) -> Maker:
    """Return what makes some memory, as the program names it."""
    return memory[0] if len(memory) == 2 else memory


def least_held(
    posed: Posed,
    optimizer: str,
    moment: int,
    choices: tuple[int, ...],
    again: Collection[Maker],
) -> float:
    """Return the least that a row allows to be held by an assignment."""
    fold = Fold.none(posed.problem)
    placed = PlacementProgram(fold, everything(fold))
    rows = MemoryRows(posed, placed, optimizer)
    held = rows.held_at(moment)
    for index, own in enumerate(choices):
        for at, _, taken in placed.choices_of(index):
            placed.program.require(taken, at == own, at == own)
    assert rows.again.keys() >= set(again)
    for maker, column in rows.again.items():
        placed.program.require(column, maker in again, maker in again)
    placed.program.costs[:] = [0.0] * placed.program.num_columns
    placed.program.charge(held, 1.0)
    highs = make_highs(10.0, 1, 0.0)
    highs.passModel(placed.program.to_highs(1.0))
    values = run_highs(highs).values
    assert values is not None
    return value_of(held, values.tolist())


@pytest.mark.parametrize("seed", range(0, 24, 2))
def test_a_row_comes_to_what_is_held_at_its_moment(seed: int) -> None:
    posed, optimizer = small(seed)
    rng = random.Random(seed)
    every = possible(posed.problem)
    for choices in rng.sample(every, min(3, len(every))):
        run = Run(posed, choices, optimizer)
        held = find_holdings(posed, choices, optimizer)
        again = rng.choice(list(run.ways()))
        keeping = keep(held, {key_of(posed, memory) for memory in again})
        live = dict(zip(keeping.moments, keeping.live, strict=True))
        made_again = [m for m in live if held.moments.maker_at(m) is not None]
        for moment in {rng.choice([*live]), [*live][-1], *made_again[:2]}:
            makers = {maker_of(memory) for memory in again}
            found = least_held(posed, optimizer, moment, choices, makers)
            assert found == pytest.approx(live[moment])


@pytest.mark.parametrize("mesh", [Mesh(tp=2), Mesh(dp=2, tp=2), Mesh(dp=3)], ids=str)
@pytest.mark.parametrize("seed", [0, 1, 3])
def test_a_row_has_what_microbatches_add_up_to(seed: int, mesh: Mesh) -> None:
    model, rng = RandomModel(seed, 8), random.Random(seed)
    posed = planner(model, model.inputs(), mesh=mesh, microbatches=2).posed
    times = CallTimes(posed)
    begins = [*map(times.moments.of_place, times.completed.values())]
    for _ in range(2):
        choices = draw_choices(rng, posed)
        keeping = keep(find_holdings(posed, choices, "adamw"), set())
        live = dict(zip(keeping.moments, keeping.live, strict=True))
        moments = {b + part for b in begins for part in (0, 1)} & live.keys()
        for moment in {*moments, times.leaving, times.update}:
            found = least_held(posed, "adamw", moment, tuple(choices), set())
            assert found == pytest.approx(live[moment])


def test_a_row_has_the_padding_of_what_is_gathered() -> None:
    rng, seen = random.Random(0), 0
    posed = planner(Uneven(), torch.ones(12, 6), mesh=Mesh(dp=3)).posed
    for _ in range(12):
        choices = tuple(draw_choices(rng, posed))
        held = find_holdings(posed, choices, "adamw")
        keeping = keep(held, set())
        live = dict(zip(keeping.moments, keeping.live, strict=True))
        copies = (one for one in held.holdings if one.is_copy)
        for copy in (one for one in copies if one.num_bytes == Uneven.PADDED):
            moment = held.moments.of_place(copy.first)
            found = least_held(posed, "adamw", moment, choices, set())
            assert found == pytest.approx(live[moment])
            seen += 1
    assert seen


@pytest.mark.parametrize("seed", range(0, 24, 4))
def test_what_two_moments_have_in_common_is_written_once(seed: int) -> None:
    posed, optimizer = small(seed)
    fold = Fold.none(posed.problem)
    placed = PlacementProgram(fold, everything(fold))
    rows = MemoryRows(posed, placed, optimizer)
    moment = rows.timed.forward_end + 1
    held = rows.held_at(moment)
    count = placed.program.num_columns
    assert rows.held_at(moment) == held
    assert placed.program.num_columns == count
