"""Sweeps a level at a time move what sweeps of one variable after another move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.compiler.search.test_bounds import hard_part

from partita.compiler.search.link import End
from partita.compiler.search.model import Bools, Floats, Model
from partita.compiler.search.ordering import frontier_order
from partita.compiler.search.relaxation import Relaxation
from partita.compiler.search.split_star import SplitStar

SEEDS = st.integers(0, 1 << 32)
ROUNDING = 1e-9


class OneByOne:
    """The same sweeps as they are told of: tables are changed, stars after each."""

    def __init__(self, model: Model, order: Sequence[int]) -> None:
        self.moved = Relaxation(model)
        self.bound = self.moved.bound
        self.order = [*(v for v in self.moved.theta if v < 0), *order]
        self.place = {variable: at for at, variable in enumerate(self.order)}

    def sweep(self) -> None:
        for variable in self.order:
            self._visit(variable, self._ahead(variable, 1))
        for variable in reversed(self.order):
            self._visit(variable, self._ahead(variable, -1))
        for star in self.moved.stars.values():
            level(star)

    def lean(self) -> None:
        for variable in reversed(self.order):
            ahead = self._ahead(variable, -1)
            self._visit(variable, ahead, len(ahead))

    def _ahead(self, variable: int, sign: int) -> list[End]:
        here = self.place[variable]
        ends = self.moved.ends[variable]
        return [end for end in ends if sign * (self.place[end.other] - here) > 0]

    def _visit(
        self, variable: int, ahead: Sequence[End], num_parts: int | None = None
    ) -> None:
        theta, ends = self.moved.theta[variable], self.moved.ends[variable]
        for end in ends:
            least = end.table.min(axis=1)
            end.table -= least[:, None]
            theta += least[end.own]
        self.bound += float(theta.min())
        theta -= theta.min()
        part = theta / (num_parts or max(len(ahead), len(ends) - len(ahead), 1))
        for end in ahead:
            gives = end.least(part)
            end.table += gives[:, None]
            theta -= gives[end.own]


def level(star: SplitStar) -> None:
    """Give all ports the same part of what each can spare of a price."""
    spare = np.zeros_like(star.shares)
    takers: Bools = np.array([sets.any(axis=0) for sets in star.sets.values()])
    for port, (variable, sets) in enumerate(star.sets.items()):
        part = star.tables[variable] / np.maximum(sets.sum(axis=1), 1)
        for column in np.flatnonzero(takers[port]):
            spare[port, :, column] = part[:, sets[:, column]].min(axis=1)
    spare = np.minimum(spare, star.shares)
    mean = spare.sum(axis=0) / np.maximum(takers.sum(axis=0), 1)
    for port, (variable, sets) in enumerate(star.sets.items()):
        change = np.where(takers[port], mean - spare[port], 0.0)
        star.shares[port] += change
        star.tables[variable] += change @ sets.T
        np.maximum(star.tables[variable], 0.0, out=star.tables[variable])


def assert_same(own: Mapping[int, Floats], wanted: Mapping[int, Floats]) -> None:
    for name, values in wanted.items():
        np.testing.assert_allclose(own[name], values, atol=ROUNDING)


@settings(max_examples=40)
@given(SEEDS, st.booleans(), st.integers(0, 5))
def test_sweeps_move_what_one_variable_after_another_moves(
    seed: int, by_frontier: bool, leaning: int
) -> None:
    model = hard_part(seed)
    order = frontier_order(model) if by_frontier else [*model.costs]
    relaxation, wanted = Relaxation(model), OneByOne(model, order)
    relaxation.follow(order)
    for sweep in range(6):
        relaxation.sweep()
        wanted.sweep()
        if sweep == leaning:
            relaxation.lean()
            wanted.lean()
        np.testing.assert_allclose(relaxation.bound, wanted.bound, atol=ROUNDING)
        assert_same(relaxation.theta, wanted.moved.theta)
        for pair, table in wanted.moved.tables.items():
            np.testing.assert_allclose(relaxation.tables[pair], table, atol=ROUNDING)
        for name, star in wanted.moved.stars.items():
            own = relaxation.stars[name]
            np.testing.assert_allclose(own.shares, star.shares, atol=ROUNDING)
            assert_same(own.tables, star.tables)


@settings(max_examples=15)
@given(SEEDS, st.integers(1, 7))
def test_many_sweeps_at_once_are_as_many(seed: int, times: int) -> None:
    model = hard_part(seed)
    once, each = Relaxation(model), Relaxation(model)
    once.sweep(times)
    for _ in range(times):
        each.sweep()
    np.testing.assert_allclose(once.bound, each.bound, atol=ROUNDING)
    assert_same(once.theta, each.theta)
