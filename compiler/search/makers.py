"""What of an assignment could be made again, when it is needed, and what is held then.

A *maker* is a call or a boxing of the forward. Calls are made again before the call of
the backward that needs them first, boxings when what wants them is called.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import NamedTuple

import numpy as np

from partita.compiler.search.holdings import Holding, Holdings
from partita.compiler.search.model import Floats, Ints

MOST_ALONE = 400
"""Makers; of more, those of equal blocks are counted together."""


class Needs(NamedTuple):
    """When the backward needs each maker first, and each holding last, as moments.

    A call that is made again is made at its first.
    """

    first: dict[int, int]
    last: dict[int, int]


class Live(NamedTuple):
    """The bytes that are held: at the moments at which something runs, and between.

    They change at ``changing``, and are ``held`` from there on.
    """

    moments: Ints
    changing: Ints
    held: Floats

    def at(self, moments: Ints) -> Floats:
        """Return what is held at some moments."""
        return self.held[np.searchsorted(self.changing, moments, "right") - 1]


class _Other(NamedTuple):
    """A holding that is there as long as what is made again says.

    It is told by its number, whether it is a maker's, when it is made and the forward
    is done with it, and the makers that use it.
    """

    number: int
    is_makers: bool
    begin: int
    forward: int
    users: Sequence[int]


class _Steady(NamedTuple):
    """What is held whatever is made again, by changes in order, and the ``others``."""

    moments: Ints
    changing: Ints
    change: Floats
    saved_bytes: int
    others: Sequence[_Other]


def _summed(at: Ints, more: Floats) -> tuple[Ints, Floats]:
    """Return the places, each once and in order, and the sums of what is there."""
    places, number = np.unique(at, return_inverse=True)
    sums = np.zeros(len(places))
    np.add.at(sums, number, more)
    return places, sums


@dataclass(frozen=True)
class Makers:
    """The makers among the holdings of an assignment.

    Of more than ``most_alone``, those of equal blocks are counted together.
    """

    held: Holdings
    most_alone: int = MOST_ALONE

    @cached_property
    def every(self) -> dict[int, list[Holding]]:
        """What could be made again, by maker: of the forward, and not leaving."""
        found: dict[int, list[Holding]] = {}
        for holding in self.held.holdings:
            found.setdefault(holding.maker, []).append(holding)
        return {
            maker: own
            for maker, own in found.items()
            if self.held.moments.of_place(own[0].first) <= self.held.forward_end
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
        moments, first = self.held.moments, dict[int, int]()
        last: dict[int, int] = {}
        for maker, numbers in reversed(self.numbers.items()):
            begin = inf
            for number in numbers:
                one = self.held.holdings[number]
                uses = [*map(moments.of_place, one.backward)]
                for user in self.users.get(number, ()):
                    if user in first and counts(maker, user):
                        uses.append(first[user])
                if uses:
                    last[number] = max(uses)
                    begin = min(begin, *uses)
            if begin < inf:
                first[maker] = self._made_for(self.every[maker][0], int(begin))
        return Needs(first, last)

    def _made_for(self, one: Holding, use: int) -> int:
        """Return when something is made again that is first used at a moment."""
        moments = self.held.moments
        call, maker = moments.call_at(use), moments.maker_at(use)
        if not one.is_copy:
            return moments.of_again(call, moments.call_of(one.first))
        user = moments.place_of(call if maker is None else maker)
        if user not in one.boxed_at and one.through is not None:
            user, maker = one.through, moments.call_of(one.through)
            use = moments.of_again(call, maker)
        return use - user + one.boxed_at.get(user, user)

    def needs_of(self, again: Mapping[int, bool]) -> Needs:
        """Return when, with a choice of what is made again."""
        return self.needs(lambda _, user: again[user])

    def live(self, again: Mapping[int, bool], needs: Needs | None = None) -> Live:
        """Return the bytes that are held at every moment: see ``holdings.py``.

        What is needed when follows from the choice, unless it is given.
        """
        steady, of_place = self._steady, self.held.moments.of_place
        at, more, made_again = list[int](), list[int](), set[int]()

        def hold(num_bytes: int, first: int, last: int) -> None:
            at.extend((first, last + 1))
            more.extend((num_bytes, -num_bytes))

        saved = 0
        if needs is None:
            needs = self.needs_of(again)
        for number, is_makers, begin, forward, users in steady.others:
            one = self.held.holdings[number]
            if is_makers:
                last, ends = needs.last.get(number), list[int]()
                if again[one.maker] and one.maker in needs.first:
                    made = self._there_again(one, needs)
                    hold(one.num_bytes, made, made if last is None else last)
                    hold(one.workspace_bytes, made, made)
                    made_again.add(made)
                    if one.opening_bytes:
                        hold(one.opening_bytes, made - 1, made - 1)
                        made_again.add(made - 1)
                elif last is not None:
                    ends = [last]
            else:
                ends = [*map(of_place, one.backward)]
                ends += (needs.first[u] for u in users if again[u] and u in needs.first)
            hold(one.num_bytes, begin, max([forward, *ends]))
            if self.held.num_live > 1 and self._is_saved(one, ends):
                saved += one.num_bytes
        always = steady.saved_bytes + saved
        always = self.held.state_bytes + always * (self.held.num_live - 1)
        changing, held = _summed(
            np.concatenate([steady.changing, np.array(at, dtype=np.int64)]),
            np.concatenate([steady.change, np.array(more, dtype=np.float64)]),
        )
        moments = steady.moments
        if made_again:
            moments = np.union1d(moments, np.array([*made_again]))
        return Live(moments, changing, always + np.cumsum(held))

    @cached_property
    def _steady(self) -> _Steady:
        """What no choice of what is made again changes, and which holdings one does."""
        of_call, of_place = self.held.moments.of_call, self.held.moments.of_place
        every = {*map(of_call, range(self.held.num_calls + 2))}
        at, more, saved = list[int](), list[int](), 0
        others: list[_Other] = []
        for number, one in enumerate(self.held.holdings):
            users, is_makers = self.users.get(number, ()), one.maker in self.every
            begin, forward = of_place(one.first), of_place(one.forward)
            if not (one.keys or one.is_fed):
                every.add(begin)
            if is_makers or users:
                others.append(_Other(number, is_makers, begin, forward, users))
                continue
            ends = [*map(of_place, one.backward)]
            at += (begin, max([forward, *ends]) + 1)
            more += (one.num_bytes, -one.num_bytes)
            saved += one.num_bytes * self._is_saved(one, ends)
        update = of_call(self.held.num_calls + 1)
        at += (update, update + 1)
        more += (self.held.update_bytes, -self.held.update_bytes)
        moments = np.array(sorted(every))
        changes = _summed(np.array(at, dtype=np.int64), np.array(more, dtype=float))
        return _Steady(moments, *changes, saved, others)

    def _there_again(self, one: Holding, needs: Needs) -> int:
        """Return from when on something is there again, if its maker works again."""
        first, forward = needs.first[one.maker], self.held.moments.of_place(one.forward)
        return max(first + bool(one.opening_bytes), forward + 1)

    def _is_saved(self, one: Holding, ends: Iterable[int]) -> bool:
        """Whether it is kept for the backward, given who uses it as it is."""
        begin, end = self.held.forward_end, self.held.leaving
        is_early = self.held.moments.of_place(one.first) <= begin and not one.is_fed
        return is_early and any(begin < use < end for use in ends)

    @cached_property
    def usual(self) -> Needs:
        """First needs, if what the backward uses itself is needed for that first."""
        return self.needs(lambda maker, _: not self.is_used(maker))

    @cached_property
    def apart(self) -> Live:
        """What is held but for what the backward needs of makers."""
        nothing = dict.fromkeys(self.every, False)
        return self.live(nothing, Needs({}, {}))

    def apart_at(self, moment: int) -> float:
        """Return the same at one moment."""
        return float(self.apart.at(np.array(moment)))

    def add_copies(self, again: dict[int, bool]) -> None:
        """Have copies of what is made again be made again, too."""
        for maker, own in self.every.items():
            if own[0].is_copy and any(again[source] for source in self.sources(maker)):
                again[maker] = True

    def held_at(
        self, moment: int, needs: Needs | None
    ) -> dict[int, tuple[float, float]]:
        """Return the bytes of each maker at a moment if it is kept, and if made again.

        Unless it is known when all is needed, that is what it holds at the least.
        """
        of_place, found = self.held.moments.of_place, dict[int, tuple[float, float]]()
        for maker, numbers in self.numbers.items():
            own = self.usual if needs is None or maker not in needs.first else needs
            first = own.first.get(maker)
            if first is None:
                continue
            is_known = needs is not None or self.is_used(maker)
            kept = again = 0.0
            for number in numbers:
                one = self.held.holdings[number]
                forward = of_place(one.forward)
                made, last = self._there_again(one, own), own.last.get(number)
                if last is not None:
                    last = last if is_known else first - 1
                    # of those that wait for their backward, and of itself
                    kept += one.num_bytes * (self.held.num_live - 1)
                    kept += one.num_bytes * (forward < moment <= last)
                if needs is not None and moment == made - 1:
                    again += one.opening_bytes
                if needs is not None and moment == made:
                    again += one.num_bytes + one.workspace_bytes
                elif last is not None and made <= moment <= last:
                    again += one.num_bytes
            if kept or again:
                found[maker] = kept, again
        return found

    @cached_property
    def groups(self) -> list[list[int]]:
        """The makers; where there are many, those of equal blocks together."""
        if len(self.every) <= self.most_alone:
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
