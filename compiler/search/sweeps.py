"""Sweeps of the relaxation: all variables of a level at once, on flat arrays.

Variables that share no link may be visited in any order, or together. The level of one
is the longest way of links to it from the front of the order: along the levels, and
back, a sweep does what it does one variable at a time.

A link's table stays as it is, seen from both of its ends; what has been moved to or
from it is an offset per class of either end, so that

    entry(a, b) = table(a, b) + offset(a) + offset(b).

To collect is then to read: afterwards the offsets of a class are minus the least of the
rest of its row. What the ports of stars share out is not of that form: it is put into
their tables once per sweep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from partita.compiler.search.link import End
from partita.compiler.search.model import Floats, Ints
from partita.compiler.search.split_star import SharingOut


@dataclass(frozen=True, slots=True)
class _Span:
    """Ends that stand behind each other, of one level.

    Attributes:
        rows: of the offsets, a row per class; ``entries``: of the tables.
        starts: of the rows, among the entries.
        choices: of the level, by class; ``firsts`` and ``counts`` of each class.
    """

    rows: slice
    entries: slice
    starts: Ints
    choices: Ints
    firsts: Ints
    counts: Ints


@dataclass(frozen=True, slots=True)
class _Level:
    """The variables of a level; ``starts`` are those of each among their choices.

    Attributes:
        theta: their choices.
        down: ends of links to lower levels.
        fresh: those, and all of stars: what has changed when a sweep comes by again.
        up: ends of links to higher levels.
        every: all.
        parts: per choice, into how many parts a variable's surplus goes in a sweep.
        backward: the same, where all of it goes down.
    """

    theta: slice
    starts: Ints
    counts: Ints
    down: _Span
    fresh: _Span
    up: _Span
    every: _Span
    parts: Floats
    backward: Floats


class Sweeps:
    """The sweeps along one order of the variables of a relaxation.

    ``theta`` holds what is left on the choices, flat, by variable as ``place`` says.
    """

    def __init__(
        self,
        order: Sequence[int],
        ends: Mapping[int, Sequence[End]],
        theta: Mapping[int, Floats],
        tables: Floats,
        stars: SharingOut,
    ) -> None:
        """Lay all ends out by level.

        Args:
            order: of the variables.
            ends: of each variable.
            theta: what is left on its choices.
            tables: of all links, those of stars last.
            stars: what shares those out.
        """
        level_of = _levels(order, ends)
        by_level: list[list[int]] = [[] for _ in range(max(level_of.values()) + 1)]
        for variable in order:
            by_level[level_of[variable]].append(variable)
        self._tables = tables
        self._stars = stars
        self._first_of_star = len(tables) - stars.num_entries
        laid: list[End] = []
        groups: list[tuple[int, int, int, int]] = []  # per level, where its ends part
        starts: list[int] = []  # of each laid end, its variable's in the level
        for variables in by_level:
            kinds: list[list[tuple[End, int]]] = [[], [], []]
            start = 0
            for variable in variables:
                for end in ends[variable]:
                    is_up = level_of[end.other] > level_of[variable]
                    is_star = end.first >= self._first_of_star
                    kinds[is_up * (2 - is_star)].append((end, start))
                start += len(theta[variable])
            sizes = np.cumsum([len(laid), *map(len, kinds)])
            groups.append((int(sizes[0]), int(sizes[1]), int(sizes[2]), int(sizes[3])))
            for end, at in (pair for kind in kinds for pair in kind):
                laid.append(end)
                starts.append(at)
        self._lay_out(laid)
        self._lay_choices(laid, starts)
        self.place: dict[int, slice] = {}
        self.theta = np.concatenate([theta[v] for own in by_level for v in own])
        at = 0
        for variables in by_level:
            for variable in variables:
                self.place[variable] = slice(at, at + len(theta[variable]))
                at += len(theta[variable])
        self._levels = [
            self._level(variables, ends, level_of, bounds)
            for variables, bounds in zip(by_level, groups, strict=True)
        ]
        self._is_new = True

    def run(self, times: int) -> float:
        """Sweep so often; return by how much the bound rose."""
        risen = 0.0
        for _ in range(times):
            for level in self._levels:
                collected = level.every if self._is_new else level.fresh
                risen += self._visit(level, collected, level.up, level.parts)
            for level in reversed(self._levels):
                risen += self._visit(level, level.up, level.down, level.parts)
            self._share_out()
            self._is_new = False
        return risen

    def lean(self) -> float:
        """Move all to the front of the order; return by how much the bound rose."""
        risen = 0.0
        for level in reversed(self._levels):
            risen += self._visit(level, level.every, level.down, level.backward)
        self._is_new = True
        return risen

    def write_back(self) -> None:
        """Bring the links' tables and the stars' shares up to date."""
        moved = self._offsets[self._row] + self._offsets[self._column]
        np.add(self._base, moved, out=self._tables)
        np.maximum(self._tables, 0.0, out=self._tables)
        self._stars.write_back()

    def _visit(
        self, level: _Level, collected: _Span, given: _Span, parts: Floats
    ) -> float:
        """Collect from links, and hand parts to others; return what all had left."""
        theta, offsets = self.theta[level.theta], self._offsets
        if len(collected.starts):
            entries, rows = collected.entries, collected.rows
            entry = self._entries[entries] + offsets[self._others[entries]]
            least = np.minimum.reduceat(entry, collected.starts)
            collects = np.maximum(offsets[rows] + least, 0.0)
            np.negative(least, out=offsets[rows])
            spread = np.repeat(collects, collected.counts)
            theta += np.bincount(collected.choices, spread, len(theta))
        lowest = np.minimum.reduceat(theta, level.starts)
        theta -= np.repeat(lowest, level.counts)
        if len(given.starts):
            part = (theta / parts)[given.choices]
            gives = np.minimum.reduceat(part, given.firsts)
            offsets[given.rows] += gives
            spread = np.repeat(gives, given.counts)
            theta -= np.bincount(given.choices, spread, len(theta))
            np.maximum(theta, 0.0, out=theta)
        return float(lowest.sum())

    def _share_out(self) -> None:
        """Put what was moved to and from stars into their tables, and level them."""
        own = slice(self._first_of_star, None)
        offsets, tables = self._offsets, self._base[own]
        tables += offsets[self._row[own]] + offsets[self._column[own]]
        np.maximum(tables, 0.0, out=tables)
        self._stars.level(tables)
        self._entries[self._star_entries] = tables[self._star_sources]
        offsets[self._star_rows] = 0.0

    def _lay_out(self, laid: Sequence[End]) -> None:
        """Make the arrays of the ends' rows and entries."""
        shapes = np.array([end.table.shape for end in laid], dtype=np.int64)
        num_rows, num_columns = shapes.reshape(-1, 2).T
        sizes = num_rows * num_columns
        self._row_ends = np.concatenate([[0], num_rows.cumsum()])
        self._entry_ends = np.concatenate([[0], sizes.cumsum()])
        sides = np.array([end.side for end in laid], dtype=np.int64)
        position = np.argsort(sides)
        others = position[sides ^ 1]
        row_sizes = np.repeat(num_columns, num_rows)
        self._row_starts = np.concatenate([[0], row_sizes.cumsum()])
        num_entries = int(self._entry_ends[-1])
        column = np.arange(num_entries) - np.repeat(self._row_starts[:-1], row_sizes)
        own_row = np.repeat(np.arange(len(row_sizes)), row_sizes)
        row = own_row - np.repeat(self._row_ends[:-1], sizes)
        self._others = column + np.repeat(self._row_ends[others], sizes)
        is_first = sides % 2 == 0
        across = np.where(is_first, num_columns, 1)  # a link's table is [first, other]
        along = np.where(is_first, 1, num_rows)
        source = np.repeat(np.array([end.first for end in laid], np.int64), sizes)
        source += row * np.repeat(across, sizes) + column * np.repeat(along, sizes)
        self._base = self._tables.copy()
        self._entries = self._base[source]
        self._offsets = np.zeros(len(row_sizes))
        of_first = np.repeat(is_first, sizes)
        self._row = np.zeros(len(self._base), dtype=np.int64)
        self._column = np.zeros(len(self._base), dtype=np.int64)
        self._row[source[of_first]] = own_row[of_first]
        self._column[source[of_first]] = self._others[of_first]
        self._star_entries = np.flatnonzero(source >= self._first_of_star)
        self._star_sources = source[self._star_entries] - self._first_of_star
        self._star_rows = np.unique(own_row[self._star_entries])

    def _lay_choices(self, laid: Sequence[End], starts: Sequence[int]) -> None:
        """Make the arrays of the choices of each class of an end."""
        none = np.zeros(0, dtype=np.int64)
        sizes = np.array([len(end.order) for end in laid], dtype=np.int64)
        self._choice_ends = np.concatenate([[0], sizes.cumsum()])
        firsts = np.concatenate([none, *(end.starts for end in laid)])
        num_rows = np.diff(self._row_ends)
        self._firsts = firsts + np.repeat(self._choice_ends[:-1], num_rows)
        self._counts = np.diff(self._firsts, append=self._choice_ends[-1])
        self._choices = np.concatenate([none, *(end.order for end in laid)])
        self._choices += np.repeat(np.array(starts, dtype=np.int64), sizes)

    def _level(
        self,
        variables: Sequence[int],
        ends: Mapping[int, Sequence[End]],
        level_of: Mapping[int, int],
        bounds: tuple[int, int, int, int],
    ) -> _Level:
        first, up, plain, last = bounds
        places = [self.place[variable] for variable in variables]
        start = places[0].start
        counts = np.array([place.stop - place.start for place in places])
        num_down = np.array(
            [sum(level_of[e.other] < level_of[v] for e in ends[v]) for v in variables]
        )
        num_up = np.array([len(ends[v]) for v in variables]) - num_down
        parts = np.maximum(np.maximum(num_up, num_down), 1)
        return _Level(
            theta=slice(start, places[-1].stop),
            starts=np.array([place.start - start for place in places]),
            counts=counts,
            down=self._span(first, up),
            fresh=self._span(first, plain),
            up=self._span(up, last),
            every=self._span(first, last),
            parts=np.repeat(parts, counts).astype(np.float64),
            backward=np.repeat(np.maximum(num_down, 1), counts).astype(np.float64),
        )

    def _span(self, first: int, last: int) -> _Span:
        """Return the ends of these numbers."""
        rows = slice(int(self._row_ends[first]), int(self._row_ends[last]))
        entries = slice(int(self._entry_ends[first]), int(self._entry_ends[last]))
        choices = slice(int(self._choice_ends[first]), int(self._choice_ends[last]))
        return _Span(
            rows,
            entries,
            self._row_starts[rows] - entries.start,
            self._choices[choices],
            self._firsts[rows] - choices.start,
            self._counts[rows],
        )


def _levels(order: Sequence[int], ends: Mapping[int, Sequence[End]]) -> dict[int, int]:
    """Return the level of each variable."""
    levels: dict[int, int] = {}
    for variable in order:
        before = [levels[end.other] for end in ends[variable] if end.other in levels]
        levels[variable] = max(before, default=-1) + 1
    return levels
