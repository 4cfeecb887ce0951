"""Dynamic programming along an order of the variables, bounded by the relaxation.

A state is what the decided variables still mean to the others: the choices of those
with an undecided neighbour, and for every unfinished star the placements wanted so
far. Of states that mean the same only the cheapest goes on. A state's ``surplus`` is
its cost over the relaxation's bound so far; everything yet to come only adds to it,
so a state that exceeds the limit is dropped for good. With too many states the dearest
are dropped as well; the least surplus among those is then what was not ruled out.

This is Bertele and Brioschi's elimination turned around, with the relaxation as an
admissible heuristic; see Dechter and Mateescu, "AND/OR search spaces for graphical
models", Artificial Intelligence 171, 2007, on merging by context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from partita.compiler.search.model import (
    NOBODY,
    Bools,
    Floats,
    Ints,
    Model,
    Star,
    price_of_sets,
)
from partita.compiler.search.relaxation import Relaxation, SplitStar

Shorts = npt.NDArray[np.int16] | npt.NDArray[np.int32]  # there are many states
_AHEAD = 4  # times as many states are merged as are kept at most


class Passed(NamedTuple):
    """What a pass found: an assignment if any, and the least surplus not ruled out."""

    positions: dict[int, int] | None
    least_open: float


@dataclass(slots=True)
class _States:
    """States as columns: the surplus of each, choices, and sets of wanted placements.

    ``wanted`` holds, per star under way, positions in that star's list of sets.
    """

    surplus: Floats
    choices: dict[int, Shorts] = field(default_factory=dict[int, Shorts])
    wanted: dict[int, Shorts] = field(default_factory=dict[int, Shorts])

    def take(self, index: Ints) -> None:
        self.surplus = self.surplus[index]
        self.choices = {v: column[index] for v, column in self.choices.items()}
        self.wanted = {s: column[index] for s, column in self.wanted.items()}

    def wants(self, name: int) -> Shorts:
        """Return the set of a star's placements that each state wants so far."""
        nothing = np.zeros(len(self.surplus), dtype=np.int32)
        return self.wanted.get(name, nothing)

    def keys(self) -> Ints:
        """Return one number per state, equal for states that mean the same."""
        key = np.zeros(len(self.surplus), dtype=np.int64)
        size = 1
        for column in (*self.choices.values(), *self.wanted.values()):
            radix = int(column.max()) + 1
            if size > (1 << 62) // radix:
                _, key = np.unique(key, return_inverse=True)
                size = int(key.max()) + 1
            key = key * radix + column
            size *= radix
        return key

    def merge(self) -> Ints:
        """Keep the cheapest of states that mean the same; return which these were."""
        key = self.keys()
        order = np.lexsort((self.surplus, key))
        ordered = key[order]
        is_first = np.ones(len(order), dtype=np.bool_)
        is_first[1:] = ordered[1:] != ordered[:-1]
        index = order[is_first]
        self.take(index)
        return index


class _StarOnTheWay:
    """A star some of whose variables are decided.

    ``surplus`` counts, once the producer is decided: for each wanted placement its
    price beyond the shares of the undecided ports, less what the decided ports' links
    have counted already. What an undecided port's link may yet count is not in it, so
    that it can only grow.
    """

    def __init__(self, star: Star, split: SplitStar) -> None:
        self.star = star
        self.shares = split.share_of()
        prices = np.where(star.boxing < inf, star.boxing, 0.0)
        self.beyond = np.maximum(prices - sum(self.shares.values()), 0.0)
        self.is_made = star.producer == NOBODY
        self.undecided = set(star.ports)
        self.sets: Bools = np.zeros((1, star.boxing.shape[1]), dtype=np.bool_)

    @property
    def is_done(self) -> bool:
        return self.is_made and not self.undecided

    def consumer_adds(self, variable: int) -> Floats:
        """Return what a port adds, by [made, set wanted so far, own class]."""
        share = self.shares[variable]
        beyond = self.beyond
        sets = self.star.ports[variable].sets.astype(np.float64)
        wanted = self.sets.astype(np.float64)
        kept = (wanted[None] * share[:, None]) @ (1.0 - sets).T
        new = ((1.0 - wanted)[None] * beyond[:, None]) @ sets.T
        return kept + new

    def producer_adds(self) -> Floats:
        """Return what the sets add, by [set wanted so far, made class]."""
        return self.sets.astype(np.float64) @ self.beyond.T

    def counted(self, variable: int) -> Floats:
        """Return what a port's link has counted, by [own class, made class]."""
        return price_of_sets(self.shares[variable], self.star.ports[variable].sets).T

    def decide_consumer(self, variable: int, before: Shorts, classes: Ints) -> Shorts:
        """Note that a port is decided; return each state's new set."""
        sets = self.star.ports[variable].sets
        pairs = before.astype(np.int64) * len(sets) + classes
        used = np.flatnonzero(np.bincount(pairs))
        unions = self.sets[used // len(sets)] | sets[used % len(sets)]
        self.sets, becomes = np.unique(unions, axis=0, return_inverse=True)
        self.undecided.discard(variable)
        self.beyond = self.beyond + self.shares[variable]
        becomes = becomes.reshape(-1).astype(np.int32)
        return becomes[np.searchsorted(used, pairs)]


def _cheapest(surplus: Floats, most: int) -> tuple[Ints, float]:
    """Return which are the cheapest, and the least surplus among the others."""
    index = np.argpartition(surplus, most)
    return index[:most], float(surplus[index[most:]].min())


class FrontierSearch:
    """Passes over one model with one relaxation, neither changing meanwhile."""

    def __init__(
        self, model: Model, relaxation: Relaxation, order: Sequence[int]
    ) -> None:
        self._model = model
        self._relaxation = relaxation
        self._order = order
        self.peak = 0  # the most states that the last pass had

    def run(self, limit: float, most: int, is_late: Callable[[], bool]) -> Passed:
        """Pass once, with at most so many states and this limit on the surplus."""
        model = self._model
        stars = {
            name: _StarOnTheWay(star, self._relaxation.stars[name])
            for name, star in model.stars.items()
        }
        states = _States(np.zeros(1))
        steps: list[tuple[Shorts, Shorts]] = []
        decided: set[int] = set()
        least_open = inf
        self.peak = 0
        for variable in self._order:
            if is_late():
                return Passed(None, min(least_open, float(states.surplus.min())))
            surplus = self._extended(variable, states, decided, stars)
            parent, choice = np.nonzero(surplus <= limit)
            if not len(parent):
                return Passed(None, least_open)
            values = surplus[parent, choice]
            if len(values) > _AHEAD * most:
                index, least = _cheapest(values, _AHEAD * most)
                least_open = min(least_open, least)
                parent, choice, values = parent[index], choice[index], values[index]
            decided.add(variable)
            states.take(parent)
            states.surplus = values
            states.choices[variable] = choice.astype(np.int16)
            self._note_wants(variable, states, stars)
            self._forget(variable, states, decided, stars)
            index = states.merge()
            parent, choice = parent[index], choice[index]
            if len(index) > most:
                index, least = _cheapest(states.surplus, most)
                least_open = min(least_open, least)
                states.take(index)
                parent, choice = parent[index], choice[index]
            self.peak = max(self.peak, len(states.surplus))
            steps.append((parent.astype(np.int32), choice.astype(np.int16)))
        return Passed(self._trace(steps, int(states.surplus.argmin())), least_open)

    def _extended(
        self,
        variable: int,
        states: _States,
        decided: set[int],
        stars: dict[int, _StarOnTheWay],
    ) -> Floats:
        """Return the surplus of every state with every choice of ``variable``."""
        relaxation = self._relaxation
        surplus = states.surplus[:, None] + relaxation.theta[variable][None, :]
        for end in relaxation.ends[variable]:
            if end.other in decided:
                rows = np.take(end.table, end.own, axis=0).T
                surplus += rows[end.theirs[states.choices[end.other]]]
            elif end.other < 0:
                alone = end.table[:, 0] + relaxation.theta[end.other]
                surplus += alone[end.own]
        for name in self._model.stars_of[variable]:
            opened = stars[name]
            star = opened.star
            if variable == star.producer:
                added = opened.producer_adds()[states.wants(name)][:, star.made]
                for other, port in star.ports.items():
                    if other not in opened.undecided:
                        counted = opened.counted(other)[:, star.made]
                        added -= counted[port.classes[states.choices[other]]]
                surplus += np.maximum(added, 0.0)
            elif opened.is_made:
                rows = opened.consumer_adds(variable)
                made = np.zeros(len(surplus), dtype=np.int64)
                if star.producer != NOBODY:
                    made = star.made[states.choices[star.producer]]
                rows = rows[:, :, star.ports[variable].classes]
                surplus += rows[made, states.wants(name)]
        return surplus

    def _note_wants(
        self, variable: int, states: _States, stars: dict[int, _StarOnTheWay]
    ) -> None:
        for name in self._model.stars_of[variable]:
            opened = stars[name]
            if variable == opened.star.producer:
                opened.is_made = True
            else:
                port = opened.star.ports[variable]
                classes = port.classes[states.choices[variable]]
                before = states.wants(name)
                states.wanted[name] = opened.decide_consumer(variable, before, classes)
            if opened.is_done:
                states.wanted.pop(name, None)

    def _forget(
        self,
        variable: int,
        states: _States,
        decided: set[int],
        stars: dict[int, _StarOnTheWay],
    ) -> None:
        """Reduce choices to what they still mean to undecided variables."""
        touched = self._model.neighbours(variable) & states.choices.keys()
        for other in (*touched, variable):
            classes = self._meaning(other, decided, stars)
            if not classes:
                del states.choices[other]
                continue
            code = classes[0]
            for more in classes[1:]:
                code = code * (int(more.max()) + 1) + more
            _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
            meant = first[inverse].astype(np.int16)
            states.choices[other] = meant[states.choices[other]]

    def _meaning(
        self, variable: int, decided: set[int], stars: dict[int, _StarOnTheWay]
    ) -> list[Ints]:
        """Return the classes of a decided variable in what is not finished."""
        model = self._model
        found: list[Ints] = []
        for other, edge in model.edges[variable].items():
            if other not in decided:
                found.append(edge.seen_from(variable).own)
        for name in model.stars_of[variable]:
            opened = stars[name]
            if opened.star.producer == variable and opened.undecided:
                found.append(opened.star.made)
            elif opened.star.producer != variable and not opened.is_made:
                found.append(opened.star.ports[variable].classes)
        return found

    def _trace(self, steps: list[tuple[Shorts, Shorts]], last: int) -> dict[int, int]:
        positions: dict[int, int] = {}
        state = last
        for variable, (parent, choice) in zip(
            reversed(self._order), reversed(steps), strict=True
        ):
            positions[variable] = int(choice[state])
            state = int(parent[state])
        return positions
