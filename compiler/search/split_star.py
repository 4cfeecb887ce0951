"""A star's prices, split into one share per port, and the sharing out of what is spare.

A share stands on the link of its port, so that links are all that the relaxation knows.
What a port can do without, whatever its ends choose, goes to the others in equal parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf

import numpy as np

from partita.compiler.search.model import Bools, Floats, Ints, Star, price_of_sets


class SplitStar:
    """The shares [port, made, wanted] of a star's prices, and the ports' tables."""

    def __init__(self, star: Star) -> None:
        self.sets = {variable: port.sets for variable, port in star.ports.items()}
        prices = np.where(star.boxing < inf, star.boxing, 0.0)
        takes = self._takes()
        self.shares = takes * (prices / np.maximum(takes.sum(axis=0), 1))
        self.tables: dict[int, Floats] = {}
        for variable, share in self.share_of().items():
            sets = self.sets[variable]
            impossible = np.isinf(price_of_sets(star.boxing, sets))
            self.tables[variable] = np.where(
                impossible, inf, price_of_sets(share, sets)
            )

    def restrict(self, made: Ints, classes: Mapping[int, Ints]) -> None:
        """Keep these classes of the producer and of every port."""
        self.shares = np.ascontiguousarray(self.shares[:, made])
        for variable, kept in classes.items():
            self.sets[variable] = self.sets[variable][kept]
            table = self.tables[variable].take(made, axis=0)
            self.tables[variable] = table.take(kept, axis=1)

    def share_of(self) -> dict[int, Floats]:
        """Return each port's share [made, wanted] of the prices."""
        return dict(zip(self.sets, self.shares, strict=True))

    @property
    def taken(self) -> Bools:
        """Which of ``shares`` are of a placement that their port may want."""
        return np.broadcast_to(self._takes(), self.shares.shape)

    def _takes(self) -> Bools:
        """Return [port, 1, wanted]: whether a port may want a placement."""
        takes = [sets.any(axis=0) for sets in self.sets.values()]
        return np.array(takes)[:, None, :]


class SharingOut:
    """What all stars' ports can spare, shared out at once.

    The tables of all ports stand behind each other in one array, star by star, port by
    port, [made, class]. A *share* is an entry of ``SplitStar.shares`` that is taken; a
    *use* of it is an entry of its port's table whose class wants the placement.
    """

    def __init__(self, stars: Mapping[int, SplitStar]) -> None:
        self._stars = [*stars.values()]
        uses: list[tuple[Ints, Ints, Ints]] = []
        groups: list[Ints] = []
        self.num_entries = num_shares = num_groups = 0
        for star in self._stars:
            _, num_made, num_wanted = star.shares.shape
            for sets in star.sets.values():
                columns, classes = np.nonzero(sets.T)
                wanted = np.flatnonzero(sets.any(axis=0))
                of_share = np.searchsorted(wanted, columns)
                made = np.arange(num_made)[:, None]
                share = num_shares + made * len(wanted) + of_share
                entry = self.num_entries + made * len(sets) + classes
                size = np.broadcast_to(sets.sum(axis=1)[classes], entry.shape)
                uses.append((share.reshape(-1), entry.reshape(-1), size.reshape(-1)))
                groups.append((num_groups + made * num_wanted + wanted).reshape(-1))
                self.num_entries += num_made * len(sets)
                num_shares += num_made * len(wanted)
            num_groups += num_made * num_wanted
        none = np.zeros(0, dtype=np.int64)
        columns = [np.concatenate([none, *own]) for own in zip(*uses, strict=True)]
        self._share, self._entry, sizes = columns or [none] * 3
        self._parts = sizes.astype(np.float64)
        self._starts = np.flatnonzero(np.diff(self._share, prepend=-1))
        self._group = np.concatenate([none, *groups])
        self._ports = np.maximum(np.bincount(self._group, minlength=num_groups), 1)
        self._shares = np.concatenate([np.zeros(0), *self._taken()])

    def level(self, tables: Floats) -> None:
        """Take from every port what it can spare and share it out evenly."""
        if not len(self._share):
            return
        part = tables[self._entry] / self._parts
        spare = np.minimum(np.minimum.reduceat(part, self._starts), self._shares)
        mean = np.bincount(self._group, spare, len(self._ports)) / self._ports
        change = mean[self._group] - spare
        self._shares += change
        tables += np.bincount(self._entry, change[self._share], self.num_entries)
        # Rounding must not leave anything negative: the bound relies on it.
        np.maximum(tables, 0.0, out=tables)

    def write_back(self) -> None:
        """Bring the stars' shares up to date."""
        start = 0
        for star in self._stars:
            taken = star.taken
            end = start + int(np.count_nonzero(taken))
            star.shares[taken] = self._shares[start:end]
            start = end

    def _taken(self) -> Iterator[Floats]:
        for star in self._stars:
            yield star.shares[star.taken]
