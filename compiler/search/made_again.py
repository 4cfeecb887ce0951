"""What may be made again for the backward, in a program, and what that costs.

For calls m of the forward, and for boxings m that it makes, ``again[m]`` is 0 or 1.
What leaves the program is not made again; a copy of what is made again is, too.
"""

from __future__ import annotations

from collections.abc import Iterable

from partita.compiler.ir.sbp import Placement
from partita.compiler.search.call_times import Tensor, Use
from partita.compiler.search.linear import NO, YES, Linear, total
from partita.compiler.search.memory_needs import MemoryNeeds
from partita.compiler.search.timed_uses import Maker, TimedUses


class MadeAgain:
    """Adds to a program what may be made again: ``again``, by maker.

    Args:
        timed: who uses what.
    """

    def __init__(self, timed: TimedUses) -> None:
        self.timed = timed
        self.program = timed.program
        self.again: dict[Maker, Linear] = {}
        self._needed_known: dict[Tensor, bool] = {}
        self._leaves_known: dict[Tensor, Linear] = {}
        for index in reversed(range(len(timed.nodes))):
            self._may_make_again(index)
        self._copies_with_their_sources()

    def _may_make_again(self, index: int) -> None:
        """Add ``again`` for a node's copies and for the node, where it can matter."""
        program, call = self.program, self.timed.calls.get(index)
        for value in self.timed.values(index):
            for want in self.timed.wants(value):
                users = [
                    (use, pair.boxed.get(want, NO))
                    for use, pair in self.timed.uses(value)
                ]
                early = [b for (node, _), b in users if self.timed.is_forward(node)]
                if not early or not self._needed(users):
                    continue
                again = self.again[*value, want] = program.choice()
                program.require(total(early) - again, 0.0)
                leaves = program.either(self._leaving(users))
                program.require(again + leaves, most=1.0)
                self._price(again, self._copy_prices(value, want))
        is_maker = call is not None and not call.is_view and self.timed.values(index)
        if not is_maker or call is None or call.time > self.timed.forward_end:
            return
        if any(self._needed_at_all(value) for value in self.timed.values(index)):
            again = self.again[index] = program.choice()
            for value in self.timed.values(index):
                program.require(again + self._leaves(value), most=1.0)
            prices = [
                (choice.seconds - choice.broken_s, taken)
                for _, choice, taken in self.timed.placed.choices_of(index)
            ]
            self._price(again, prices)

    def _price(self, again: Linear, prices: Iterable[tuple[float, Linear]]) -> None:
        """Let it cost, made again, what it costs as it is made."""
        known = list(prices)
        if len({seconds for seconds, _ in known}) == 1:
            self.program.charge(again, known[0][0])
            return
        parts: list[Linear] = []
        for seconds, taken in known:
            parts.append(self.program.column(seconds))
            self.program.require(taken - parts[-1], 0.0)
        self.program.require(total(parts) - again, 0.0, 0.0)

    def _copy_prices(
        self, value: Tensor, want: Placement
    ) -> list[tuple[float, Linear]]:
        type_ = self.timed.nodes[value[0]].result_types[value[1]]
        assert type_ is not None
        box_seconds = self.timed.posed.problem.box_seconds
        times = self.timed.microbatches
        # Not where it is boxed so: that may be had, for its price, where it is not.
        return [
            (times * box_seconds(type_, made, to), self.timed.placed.made(value)[made])
            for made, to in self.timed.placed.boxes(value)
            if to == want
        ]

    def _needed(self, users: Iterable[tuple[Use, Linear]]) -> bool:
        """Whether the backward may need what these take."""
        for use, taken in users:
            call = self.timed.calls.get(use[0])
            if taken.is_no or call is None:
                continue
            if not call.is_forward or use[0] in self.again:
                return True
            if self.timed.is_view(use):
                if any(self._needed_at_all(seen) for seen in self.timed.values(use[0])):
                    return True
        return False

    def _needed_at_all(self, value: Tensor) -> bool:
        if value not in self._needed_known:
            copies = any(
                (*value, want) in self.again for want in self.timed.wants(value)
            )
            users = [(use, YES) for use, _ in self.timed.uses(value)]
            self._needed_known[value] = copies or self._needed(users)
        return self._needed_known[value]

    def _leaving(self, users: Iterable[tuple[Use, Linear]]) -> list[Linear]:
        """Return the ways in which what these take leaves the program."""
        found: list[Linear] = []
        for use, taken in users:
            if use[0] not in self.timed.calls:
                found.append(taken)
            elif self.timed.is_view(use):
                for seen in self.timed.values(use[0]):
                    found.append(self.program.both(self._leaves(seen), taken))
        return found

    def _leaves(self, value: Tensor) -> Linear:
        """Return whether the memory of a tensor leaves the program, as it is made."""
        if value not in self._leaves_known:
            users = [(use, pair.as_made) for use, pair in self.timed.uses(value)]
            self._leaves_known[value] = self.program.either(self._leaving(users))
        return self._leaves_known[value]

    def _copies_with_their_sources(self) -> None:
        """Have what is a copy of something made again be made again with it."""
        program = self.program
        is_again: dict[Tensor, Linear] = {}
        needs = MemoryNeeds(self.timed, self.again).needs_at(None)
        for index in range(len(self.timed.nodes)):
            for value in self.timed.values(index):
                parts = [self.again.get(index, NO)]
                if index in self.timed.calls and self.timed.calls[index].is_view:
                    of = self.timed.nodes[index].operands[0]
                    pair = self.timed.placed.pair(of, (index, 0))
                    parts = [program.both(is_again[of], pair.as_made)]
                    for want, boxed in pair.boxed.items():
                        copy = self.again.get((*of, want), NO)
                        parts.append(program.both(copy, boxed))
                is_again[value] = program.either(parts)
                for want in self.timed.wants(value):
                    copy = self.again.get((*value, want))
                    if copy is None or is_again[value].is_no:
                        continue
                    needed = needs.of_copy[*value, want]
                    users = self.timed.takers(value, want)
                    leaves = total(self._leaving(users))
                    program.require(
                        copy - is_again[value] - needed + leaves, least=-1.0
                    )
