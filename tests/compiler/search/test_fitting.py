"""Arrangements that fit, found from ones that do not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.compiler.search.test_arrange import MESHES, Figures, form_of

from partita.compiler.ir.mesh import Mesh
from partita.compiler.schedules.make import make_schedule
from partita.compiler.search.arrange import Arranger, Best, OutOfTime, Stages
from partita.compiler.search.fitting import fitting
from partita.compiler.search.parts import Clock
from partita.compiler.search.stage_cost import StageCost, StageHeld

CALLS = 12


class Sized(Figures):
    """Figures of stages that hold so many bytes for each call, 8 on the first mesh."""

    def __init__(self, held: list[int], limit: int) -> None:
        super().__init__(0, len(held), limit)
        self.held_by, self.asked = held, 0

    def made(self, begin: int, end: int, mesh: Mesh) -> StageCost | None:
        self.asked += 1
        size = sum(self.held_by[begin:end]) * (8 if mesh == MESHES[0] else 4)
        found = super().made(begin, end, mesh)
        return found and replace(found, held=StageHeld(size, 0, 0, {}, {}))


def arranger_of(figures: Figures, num_stages: int, stages: Stages) -> Arranger:
    form = form_of(make_schedule("1f1b", num_stages, 2))
    return Arranger(form, stages, Best())


@pytest.mark.parametrize(
    ("held", "ends", "limit"),
    [
        ([1] * CALLS, (10, CALLS), 28),
        ([1] * CALLS, (2, CALLS), 28),
        ([9, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], (6, CALLS), 48),
        ([1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 9], (6, CALLS), 48),
        ([1] * CALLS, (1, 2, CALLS), 20),
        ([1] * CALLS, (10, 11, CALLS), 20),
        ([5, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 5], (4, 8, CALLS), 28),
    ],
)
def test_stages_are_cut_shorter_until_all_fit(
    held: list[int], ends: tuple[int, ...], limit: int
) -> None:
    figures = Sized(held, limit)
    arranger = arranger_of(figures, len(ends), figures.stages())
    place = ends, (MESHES[0],) * len(ends)
    found = fitting(arranger, place)
    assert found is not None
    begins = (0, *found[0])
    for begin, end, mesh in zip(begins, *found, strict=False):
        assert figures.cost(begin, end, mesh, limit, 1) is not None
    assert found[0][-1] == CALLS


def test_what_fits_stays_as_it_is() -> None:
    figures = Sized([1] * CALLS, 8 * CALLS)
    arranger = arranger_of(figures, 2, figures.stages())
    place = (5, CALLS), (MESHES[0], MESHES[0])
    assert fitting(arranger, place) == place
    assert figures.asked == 2


def test_nothing_is_found_where_one_call_does_not_fit() -> None:
    figures = Sized([1] * 5 + [99] + [1] * 6, 48)
    arranger = arranger_of(figures, 2, figures.stages())
    assert fitting(arranger, ((5, CALLS), MESHES)) is None


def test_it_ends_in_time() -> None:
    figures = Sized([1] * CALLS, 28)
    stages = replace(figures.stages(), clock=Clock.of(0))
    with pytest.raises(OutOfTime):
        fitting(arranger_of(figures, 2, stages), ((10, CALLS), MESHES))
    assert figures.asked == 0
