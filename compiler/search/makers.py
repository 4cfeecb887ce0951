"""What of an assignment could be made again, when it is needed, and what is held then.

A *maker* is a call or a boxing of the forward.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import NamedTuple

import numpy as np

from partita.compiler.search.holdings import Holding, Holdings
from partita.compiler.search.model import Floats

_MOST_ALONE = 400  # makers; of more, those of equal blocks are counted together


class Needs(NamedTuple):
    """The first call of the backward that needs a maker, the last that a holding."""

    first: dict[int, int]
    last: dict[int, int]


@dataclass(frozen=True)
class Makers:
    """The makers among the holdings of an assignment."""

    held: Holdings

    @cached_property
    def every(self) -> dict[int, list[Holding]]:
        """What could be made again, by maker: of the forward, and not leaving."""
        found: dict[int, list[Holding]] = {}
        for holding in self.held.holdings:
            found.setdefault(holding.maker, []).append(holding)
        return {
            maker: own
            for maker, own in found.items()
            if own[0].first < self.held.num_forward
            and all(one.seconds < inf for one in own)
        }

    @cached_property
    def users(self) -> dict[int, list[int]]:
        """Per holding, the makers that need it to make their own again."""
        found: dict[int, list[int]] = {}
        for maker, own in self.every.items():
            for source in dict.fromkeys(own[0].sources):
                found.setdefault(source, []).append(maker)
        return found

    @cached_property
    def numbers(self) -> dict[int, list[int]]:
        """The holdings of each maker, by their numbers."""
        found: dict[int, list[int]] = {maker: [] for maker in self.every}
        for number, one in enumerate(self.held.holdings):
            if one.maker in found:
                found[one.maker].append(number)
        return found

    def sources(self, maker: int) -> list[int]:
        """Return the makers of what one needs."""
        sources = self.every[maker][0].sources
        at = (self.held.holdings[source].maker for source in sources)
        return [source for source in dict.fromkeys(at) if source in self.every]

    def is_used(self, maker: int) -> bool:
        """Whether the backward uses what it makes itself."""
        return any(one.backward for one in self.every[maker])

    def needs(self, counts: Callable[[int, int], bool]) -> Needs:
        """Return when the backward needs what can be made again.

        That is where it uses it, or where a user of it is first needed, for the pairs
        (maker, user) that count.
        """
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for maker, numbers in reversed(self.numbers.items()):
            for number in numbers:
                uses = list(self.held.holdings[number].backward)
                for user in self.users.get(number, ()):
                    if user in first and counts(maker, user):
                        uses.append(first[user])
                if uses:
                    last[number] = max(uses)
                    first[maker] = min(first.get(maker, uses[0]), *uses)
        return Needs(first, last)

    def needs_of(self, again: Mapping[int, bool]) -> Needs:
        """Return when, with a choice of what is made again."""
        return self.needs(lambda _, user: again[user])

    def live(self, again: Mapping[int, bool], needs: Needs | None = None) -> Floats:
        """Return the bytes that are held at every moment: see ``holdings.py``.

        What is needed when follows from the choice, unless it is given.
        """
        change = np.zeros(self.held.num_calls + 3)
        saved = 0
        if needs is None:
            needs = self.needs_of(again)
        for number, one in enumerate(self.held.holdings):
            ends = [one.forward, *one.backward]
            users = self.users.get(number, ())
            ends += (needs.first[u] for u in users if again[u] and u in needs.first)
            spans = [(one.first, max(ends))]
            if one.maker in self.every:
                spans = [(one.first, one.forward)]
                last, ends = needs.last.get(number), []
                if last is not None and again[one.maker]:
                    start = max(needs.first[one.maker], one.forward + 1)
                    spans.append((start, max(last, start - 1)))
                elif last is not None:
                    ends = [last]
                    spans = [(one.first, max(one.forward, last))]
            for first, end in spans:
                change[max(first, 0)] += one.num_bytes
                change[end + 1] -= one.num_bytes
            if self._is_saved(one, ends):
                saved += one.num_bytes
        change[self.held.num_calls + 1] += self.held.update_bytes
        ahead = saved * (self.held.num_live - 1)
        return self.held.state_bytes + ahead + np.cumsum(change[:-1])

    def _is_saved(self, one: Holding, ends: Iterable[int]) -> bool:
        """Whether it is kept for the backward, given who uses it as it is."""
        begin, end = self.held.num_forward, self.held.num_calls
        is_early = one.first < begin and not one.is_fed
        return is_early and any(begin <= use < end for use in ends)

    @cached_property
    def usual(self) -> Needs:
        """First needs, if what the backward uses itself is needed for that first."""
        return self.needs(lambda maker, _: not self.is_used(maker))

    @cached_property
    def apart(self) -> Floats:
        """What is held but for what the backward needs of makers."""
        nothing = dict.fromkeys(self.every, False)
        return self.live(nothing, Needs({}, {}))

    def held_at(
        self, moment: int, needs: Needs | None
    ) -> dict[int, tuple[float, float]]:
        """Return the bytes of each maker at a moment if it is kept, and if made again.

        Unless it is known when all is needed, that is what it holds at the least.
        """
        found: dict[int, tuple[float, float]] = {}
        for maker, numbers in self.numbers.items():
            own = self.usual if needs is None or maker not in needs.first else needs
            first = own.first.get(maker)
            if first is None:
                continue
            is_known = needs is not None or self.is_used(maker)
            kept = again = 0.0
            for number in numbers:
                one = self.held.holdings[number]
                if number in own.last:  # of those that wait for their backward
                    kept += one.num_bytes * (self.held.num_live - 1)
                last = own.last.get(number, -1) if is_known else first - 1
                start = max(first, one.forward + 1)
                if one.forward < moment <= max(last, first - 1):
                    kept += one.num_bytes
                if start <= moment <= last:
                    again += one.num_bytes
            if kept or again:
                found[maker] = kept, again
        return found

    @cached_property
    def groups(self) -> list[list[int]]:
        """The makers; where there are many, those of equal blocks together."""
        if len(self.every) <= _MOST_ALONE:
            return [[maker] for maker in self.every]
        found: dict[Hashable, list[int]] = {}
        for maker, own in self.every.items():
            sizes = tuple(one.num_bytes for one in own)
            kind = own[0].alike, sizes, own[0].seconds, self.is_used(maker)
            found.setdefault(maker if kind[0] is None else kind, []).append(maker)
        return list(found.values())

    @property
    def is_one_by_one(self) -> bool:
        """Whether none are counted together."""
        return len(self.groups) == len(self.every)
