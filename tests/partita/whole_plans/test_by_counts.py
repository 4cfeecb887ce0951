"""Which numbers of microbatches are tried, in which order, and which plan is taken."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from partita.compiler.errors import BadOptions, NoSolution
from partita.compiler.ir.mesh import Mesh
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.search_result import SearchResult
from partita.compiler.search.parts import Clock
from partita.one_mesh.batch import Batch
from partita.one_mesh.not_faster import NotFaster
from partita.options import Options
from partita.whole_plans import by_counts
from partita.whole_plans.beside_search import First
from partita.whole_plans.by_counts import CountSearch

LIMIT, STATE, MOST = 100, 20, 64


@dataclass
class Model:
    """What plans of a model hold and take, by the number of microbatches."""

    held: Callable[[int], float]
    seconds: Callable[[int], float]
    microbatches: int | str = "auto"
    state: int = STATE
    gap: Callable[[int], float] = lambda _: 0.0
    asked: list[int] = field(default_factory=list[int])
    shares: list[float] = field(default_factory=list[float])
    needs_s: dict[int, float] = field(default_factory=dict[int, float])
    takes_s: float = 0.0

    @property
    def options(self) -> Options:
        asked = cast(Any, self.microbatches)
        return Options(memory=LIMIT, microbatches=asked, time_limit=60)

    def planner(self, count: int, mesh: Mesh) -> tuple[Model, int]:
        """Return what is asked for a plan in place of a planner."""
        assert mesh.size == 2
        if count > MOST:
            raise BadOptions(f"microbatches: {count} of {MOST} rows")
        return self, count

    def search(self, known_s: float, left_s: float = 60.0) -> CountSearch:
        """Return the search of it on two ranks."""
        return CountSearch(cast(Batch, self), Mesh(tp=2), Clock.of(left_s), known_s)


class Beside:
    """Stands for the search of one number: it says what the model does."""

    most_hidden_s = 0.0

    def __init__(self, planner: tuple[Model, int], clock: Clock, known_s: float):
        self.model, self.count = planner
        self.model.shares.append(clock.left_s)
        self.clock = clock
        self.known_s = known_s

    def least_s(self, *_: object) -> float:
        """Return no bound."""
        return 0.0

    def may_save(self, *_: object) -> bool:
        """Return that the limit binds."""
        return True

    def first(self, _: object) -> object:
        """Return a plan, as ``BesideSearch.first`` does."""
        self.model.asked.append(self.count)
        time.sleep(self.model.takes_s)
        if self.clock.left_s < self.model.needs_s.get(self.count, 0.0):
            time.sleep(max(self.clock.left_s, 0.0))
            raise NoSolution("not found in time", LIMIT + 1, self.model.state)
        held, seconds = self.model.held(self.count), self.model.seconds(self.count)
        if held > LIMIT:
            raise NoSolution("too large", int(held), self.model.state)
        if seconds >= self.known_s:
            raise NotFaster(seconds)
        gap = self.model.gap(self.count)
        status = "not shown to be optimal" if gap else "optimal"
        search = SearchResult("", status, gap, 0.0)
        predicted = SimpleNamespace(seconds=seconds)
        return First(cast(Plan, Made(predicted, self.count, search)))


@dataclass(frozen=True)
class Made:
    """What of a plan is looked at."""

    predicted: SimpleNamespace
    microbatches: int
    search: SearchResult


def _searched(*_: object) -> None:
    """Stand for the search one by one."""


@pytest.fixture(autouse=True)
def no_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_counts, "BesideSearch", Beside)
    monkeypatch.setattr(by_counts, "Search", _searched)


def taken(model: Model, known_s: float = float("inf")) -> int:
    return model.search(known_s).run().plan.microbatches


def test_where_much_is_lacking_many_more_are_next_then_those_between() -> None:
    model = Model(held=lambda c: STATE + 480 / c, seconds=lambda c: 1 + c / 100)
    assert taken(model) == 8, "the fewest that fit: 80 beside the state"
    assert model.asked[:2] == [1, 64], "480 are 6 times 80, 36 times by the square"
    assert model.asked[2:] == [32, 16, 8, 4]


def test_where_state_alone_has_room_as_many_as_there_are_are_next() -> None:
    model = Model(held=lambda c: LIMIT + 640 / c, seconds=float, state=LIMIT)
    with pytest.raises(NoSolution) as refusal:
        taken(model)
    assert model.asked == [1, MOST]
    assert refusal.value.least_bytes == LIMIT + 10


def test_where_little_is_lacking_twice_as_many_are_next() -> None:
    model = Model(held=lambda c: STATE + 90 / c, seconds=lambda c: 1 + c / 100)
    assert taken(model) == 2
    assert model.asked == [1, 2, 4], "more of them may have to make less again"


def test_more_than_fit_are_taken_where_they_are_faster() -> None:
    model = Model(held=lambda _: 50, seconds=lambda c: abs(c - 4) + 1)
    assert taken(model) == 4
    assert model.asked == [1, 2, 4, 8]


def test_of_a_batch_of_fewer_rows_as_many_are_tried_as_there_are() -> None:
    model = Model(held=lambda c: STATE + 2000 / c, seconds=lambda c: 1 + c / 100)
    assert taken(model) == 32
    assert model.asked == [1, 64, 32, 16], "625 times as many there are not"


def test_the_gap_is_to_what_bounds_any_of_the_numbers() -> None:
    model = Model(
        held=lambda c: STATE + 480 / c,
        seconds=lambda c: abs(c - 16) / 100 + 1,
        gap=lambda c: 0.0 if c == 16 else 0.5,
    )
    search = model.search(float("inf")).run().plan.search
    assert model.asked == [1, 64, 32, 16, 8]
    assert search.gap == pytest.approx(1 - 0.5 * 1.16)
    assert search.status == "not shown to be optimal"
    model.gap = lambda _: 0.0
    search = model.search(float("inf")).run().plan.search
    assert (search.gap, search.status) == (0.0, "optimal")


def test_what_was_not_found_in_its_share_is_tried_again_in_what_time_is_left() -> None:
    model = Model(held=lambda _: 50, seconds=lambda c: 1 + c / 100)
    model.needs_s = {1: 1.0}
    found = model.search(float("inf"), left_s=2.0).run()
    assert found.plan.microbatches == 1
    assert model.asked == [1, 2, 4, 1], "2 needed no more than it had"
    model.asked, model.needs_s = [], {1: 60.0}
    found = model.search(float("inf"), left_s=0.1).run()
    assert found.plan.microbatches == 2
    assert model.asked == [1, 2, 4, 1]


def test_no_number_is_begun_that_would_not_end_in_time() -> None:
    model = Model(held=lambda c: STATE + 480 / c, seconds=lambda c: 1 + c / 100)
    model.takes_s, model.needs_s = 0.05, dict.fromkeys((1, 64), -60.0)
    found = model.search(float("inf"), left_s=0.12).run()
    assert found.plan.microbatches == 64
    assert model.asked == [1, 64], "0.02 s are left, and no number took less than 0.05"
    model.asked = []
    assert model.search(float("inf")).run().plan.microbatches < 64
    assert model.asked[:3] == [1, 64, 32]


def test_what_nothing_keeps_to_is_refused_as_what_needs_least_is() -> None:
    model = Model(held=lambda c: 200 + 640 / c, seconds=float)
    with pytest.raises(NoSolution) as refusal:
        taken(model)
    assert refusal.value.least_bytes == 210, "of 64 parts"
    assert model.asked[0] == 1
    assert model.asked[-1] == MOST


def test_what_is_no_faster_than_what_is_known_says_so() -> None:
    model = Model(held=lambda _: 50, seconds=lambda c: 5.0 + c)
    with pytest.raises(NotFaster) as found:
        taken(model, known_s=3.0)
    assert found.value.seconds == 6.0


def test_as_many_as_are_asked_for_have_all_the_time() -> None:
    model = Model(held=lambda _: 50, seconds=float, microbatches=4)
    assert taken(model) == 4
    assert model.asked == [4]
    assert model.shares[0] > 59
    model.microbatches = 2 * MOST
    with pytest.raises(BadOptions, match="128 of 64"):
        taken(model)


def test_without_time_what_fits_first_is_taken() -> None:
    model = Model(held=lambda c: STATE + 480 / c, seconds=lambda c: 1 + c / 100)
    found = model.search(float("inf"), left_s=0.0).run()
    assert found.plan.microbatches == model.asked[-1] == 64
