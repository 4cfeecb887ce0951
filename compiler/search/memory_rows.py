"""What is held at a moment, as rows of an integer program; what is made again, too.

To the program of placements this adds what may be made again (``made_again.py``) and,
for the moments that are asked for, what ``find_holdings`` and ``keeping.py`` count of
every assignment, to the byte. With U for "the forward uses it at t or later", N for
"the backward needs it at t or later", Q for "it was made again by t", a tensor is there

    from where it is made    if U, or if N and not again, or if N and Q

What waits for its backward is there once more for each microbatch that is ahead.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import cached_property

from partita.compiler.cost.optimizer_memory import update_bytes
from partita.compiler.ir.sbp import Placement
from partita.compiler.search.boxed import Boxings
from partita.compiler.search.call_times import Tensor, Use
from partita.compiler.search.linear import NO, YES, Linear, total
from partita.compiler.search.made_again import MadeAgain
from partita.compiler.search.memory_needs import Marks, MemoryNeeds
from partita.compiler.search.placement_program import PlacementProgram
from partita.compiler.search.pose import Posed
from partita.compiler.search.state import State, States
from partita.compiler.search.timed_uses import Copy, Maker, TimedUses
from partita.compiler.search.workspaces import Workspaces


class MemoryRows:
    """Adds to a program of placements what is made again, and rows for moments.

    Args:
        posed: the problem.
        placed: the program of its placements.
        optimizer: what holds moments of every parameter.
        num_live: microbatches that there are at once.
    """

    def __init__(
        self,
        posed: Posed,
        placed: PlacementProgram,
        optimizer: str,
        num_live: int = 1,
    ) -> None:
        self.timed = TimedUses(posed, placed)
        self.optimizer = optimizer
        self.num_ahead = num_live - 1
        self.workspaces = Workspaces(posed)
        self.boxings = posed.known(Boxings)
        self.program = placed.program
        self.again = MadeAgain(self.timed).again
        self.needs = MemoryNeeds(self.timed, self.again)
        self._sized: dict[Hashable, Linear] = {}

    def held_at(self, moment: int) -> Linear:
        """Return the bytes that are held at a moment of the step."""
        uses = self.needs.uses_at(moment)
        needs = self.needs.needs_at(moment)
        self._tighten(moment, uses, needs)
        by_now = self.needs.made_again_by(moment)
        is_boxing = self.timed.moments.is_boxing(moment)
        before = self.needs.made_again_by(moment - 1) if is_boxing else by_now
        made_now = self._made_again_at(moment, by_now)
        parts = [self._state, *self._added_up_at(moment), self._ahead]
        if moment >= self.timed.leaving:
            parts.append(self._copied)
        if moment == self.timed.update:
            parts.append(self._update)
        for index in sorted(self._states.fed | self._states.received):
            value = index, 0
            used = uses.of_tensor[value], needs.of_tensor[value]
            there = self._there(index, *used, by_now)
            if index in self._states.fed:
                until = self.timed.moments.of_place(self.timed.fed_until)
                there = YES if moment <= until else NO
            parts.append(self._bytes_of(value, there))
        for index, call in self.timed.calls.items():
            if call.time == moment:
                parts.append(self._workspace(index, YES))
            for value in self.timed.values(index):
                if self.timed.time(value) > moment:
                    continue
                if not call.is_view:
                    there = self._there(
                        index, uses.of_tensor[value], needs.of_tensor[value], by_now
                    )
                    if self.timed.time(value) == moment:
                        there = YES
                    elif index in made_now:
                        there = self.program.either([there, made_now[index]])
                    parts.append(self._bytes_of(value, there))
            if index in made_now:
                parts.append(self._workspace(index, made_now[index]))
        for copy in uses.of_copy:
            there = self._there(copy, uses.of_copy[copy], needs.of_copy[copy], before)
            parts += self._copy_bytes(copy, there)
        parts += self._boxed_at(moment)
        return total(parts)

    def _tighten(self, moment: int, uses: Marks, needs: Marks) -> None:
        """Require that of what is used later, some of all its copies is used then.

        This is so of whole numbers; without it, halves of them are nowhere at all.
        """
        for index in range(len(self.timed.nodes)):
            for value in self.timed.values(index):
                if self.timed.time(value) > moment:
                    continue
                copies = [(*value, want) for want in self.timed.wants(value)]
                parts = [uses.of_tensor[value], needs.of_tensor[value]]
                for marks in (uses, needs):
                    parts += [marks.of_copy.get(copy, NO) for copy in copies]
                some = total(parts)
                for use, _ in self.timed.uses(value):
                    call = self.timed.calls.get(use[0])
                    if call is not None and call.time >= moment:
                        self.program.require(some, 1.0)
                        break
                    if call is not None and self.timed.is_view(use):
                        for seen in self.timed.values(use[0]):
                            for marks in (uses, needs):
                                later = marks.of_tensor[seen]
                                self.program.require(some - later, 0.0)

    def _made_again_at(
        self, moment: int, by_now: dict[Maker, Linear]
    ) -> dict[int, Linear]:
        """Return whether the call is that may be made again at a moment, if one may."""
        maker = self.timed.moments.maker_at(moment)
        if self.timed.moments.is_boxing(moment):
            return {}
        before = {} if maker is None else self.needs.made_again_by(moment - 1)
        return {
            index: by_now[index] - before.get(index, NO)
            for index, call in self.timed.calls.items()
            if call.number == maker and index in by_now
        }

    def _boxed_at(self, moment: int) -> Iterator[Linear]:
        """Yield what boxings around a call take, or around one that is made again."""
        moments = self.timed.moments
        maker, number = moments.maker_at(moment), moments.call_at(moment)
        user = number if maker is None else maker
        shift = moment - moments.of_place(moments.place_of(user))
        if maker is not None:
            shift = moment - moments.of_again(number, maker)
        for use in self._around.get(user, ()):
            value = self.timed.nodes[use[0]].operands[use[1]]
            at = self.timed.boxed_at(use) - moments.of_call(user)
            if at <= shift <= max(at + 1, 0):
                yield from self._boxed(value, use, moment, shift - at)

    @cached_property
    def _around(self) -> dict[int, list[Use]]:
        """The operands of each call, by its number, and the outputs behind it."""
        found: dict[int, list[Use]] = {}
        for index, node in enumerate(self.timed.nodes):
            call = self.timed.calls.get(index)
            if call is not None:
                uses = [(index, at) for at in range(len(node.operands))]
                found[call.number] = uses + found.get(call.number, [])
            elif index in self.timed.places:
                number = self.timed.moments.call_of(self.timed.places[index])
                found.setdefault(number, []).append((index, 0))
        return found

    def _boxed(
        self, value: Tensor, use: Use, moment: int, part: int
    ) -> Iterator[Linear]:
        """Yield what boxing an operand takes, a part of that after it begins."""
        users = self.timed.uses(value)
        place = next(at for at, (user, _) in enumerate(users) if user == use)
        pair = users[place][1]
        fresh = dict(
            zip(
                pair.boxed,
                self.needs.freshly_boxed(users[:place], pair),
                strict=True,
            )
        )
        made, begin = self.timed.placed.made(value), moment - part
        by_now = self.needs.made_again_by(begin)
        before = self.needs.made_again_by(begin - 1)
        is_first = self.timed.moments.maker_at(moment) is None
        for own, want in pair.ways:
            if own == want or want not in pair.boxed:
                continue
            size = self.boxings.of(value, own, want)[min(part, 2)]
            if not size:
                continue
            way = pair.ways[own, want]
            if is_first:
                known = pair.boxed[want] - fresh[want]
                yield self.program.either([way - known]) * size
            copy = *value, want
            if copy in by_now and part < 2:
                now = by_now[copy] - before.get(copy, NO)
                if now.terms:
                    both = self.program.both(made[own], now)
                    yield self.program.either([both]) * size

    def _workspace(self, index: int, runs: Linear) -> Linear:
        """Return what a kernel takes for itself, if it runs."""
        sizes = [
            (taken, self.workspaces.of(index, choice))
            for _, choice, taken in self.timed.placed.choices_of(index)
        ]
        if runs.is_yes:
            return total(taken * size for taken, size in sizes)
        both = self.program.both
        return total(
            self.program.either([both(taken, runs)]) * size
            for taken, size in sizes
            if size
        )

    def _there(
        self, maker: Maker, used: Linear, needed: Linear, by_now: dict[Maker, Linear]
    ) -> Linear:
        """Return whether something is there that is used or needed from now on."""
        if needed.is_no:
            return used
        gone = self.again.get(maker, NO) - by_now.get(maker, NO)
        kept = needed - gone if gone.terms else needed
        return self.program.either([used, kept])

    def _bytes_of(self, value: Tensor, there: Linear) -> Linear:
        """Return what a tensor takes in the placement in which it is made, if there."""
        made = self.timed.placed.made(value)
        sizes = {
            placement: self.timed.num_bytes(value, placement) for placement in made
        }
        if there.is_yes or there.is_no:
            parts = (made[p] * size for p, size in sizes.items())
            return total(parts) * there.constant
        if len(set(sizes.values())) == 1:
            return there * min(sizes.values())
        key = value, there.key
        if key in self._sized:
            return self._sized[key]
        alive = {placement: self.program.column() for placement in made}
        for placement, taken in made.items():
            self.program.require(taken - alive[placement], 0.0)
        self.program.require(total(alive.values()) - there, 0.0)
        found = total(alive[placement] * size for placement, size in sizes.items())
        self._sized[key] = found
        return found

    def _copy_bytes(self, copy: Copy, there: Linear) -> Iterator[Linear]:
        """Yield what a copy takes if it is there, with its padding."""
        value, want = copy[:2], copy[2]
        yield there * self.timed.num_bytes(value, want)
        for own, taken in self.timed.placed.made(value).items():
            padding = 0
            if own != want:
                padding = self.boxings.of(value, own, want).padding_bytes
            if padding:
                both = self.program.both(taken, there)
                yield self.program.either([both]) * padding

    @cached_property
    def _state(self) -> Linear:
        """What is held all the time: parameters, what the optimizer has, buffers."""
        states = (state for own in self._entering for state in own)
        return total(taken * state.num_bytes for taken, state in states)

    @cached_property
    def _copied(self) -> Linear:
        """What is copied as it leaves, where it is handed over as it is made."""
        parts: list[Linear] = []
        for leaf, node in enumerate(self.timed.nodes):
            if leaf in self.timed.calls or not node.operands or self.timed.is_sum(leaf):
                continue
            value = node.operands[0]
            ways = self.timed.placed.pair(value, (leaf, 0)).ways
            parts += [
                taken * self.timed.num_bytes(value, want)
                for (made, want), taken in ways.items()
                if made == want and self.timed.lies.is_copied(leaf, want)
            ]
        return total(parts)

    def _added_up_at(self, moment: int) -> Iterator[Linear]:
        """Yield what microbatches add up to, and what is made of it behind them."""
        either, of_place = self.program.either, self.timed.moments.of_place
        for value, leaves in self.timed.sums.items():
            waits: list[Linear] = []
            made: dict[Placement, list[Linear]] = {}
            for leaf in leaves:
                pair = self.timed.placed.pair(value, (leaf, 0))
                begin = of_place(self.timed.completed[leaf])
                waits.append(pair.as_made if moment > begin + 1 else YES)
                for (own, want), taken in pair.ways.items():
                    if own != want and begin <= moment <= begin + 1:
                        known = either(made.get(want, ()), is_exact=True)
                        size = self.boxings.of_sum(value, own, want)[moment - begin]
                        yield either([taken - known]) * size
                for want, boxed in pair.boxed.items():
                    if moment > begin:
                        made.setdefault(want, []).append(boxed)
            for want, ways in made.items():
                yield either(ways) * self.timed.num_bytes(value, want)
            yield self._bytes_of(value, either(waits))

    @cached_property
    def _ahead(self) -> Linear:
        """What the backward needs of the microbatches that are ahead."""
        if not self.num_ahead:
            return NO
        needs, fed = self.needs.needs_at(None), self._states.fed
        early = [
            (index, value)
            for index in range(len(self.timed.nodes))
            if index in self._states.received or self._is_early(index)
            for value in self.timed.values(index)
        ]
        parts = [
            self._bytes_of(value, self._kept(index, needs.of_tensor[value]))
            for index, value in early
        ]
        for copy, needed in needs.of_copy.items():
            if copy[0] not in fed:
                parts += self._copy_bytes(copy, self._kept(copy, needed))
        return total(parts) * self.num_ahead

    def _is_early(self, index: int) -> bool:
        call = self.timed.calls.get(index)
        return call is not None and call.is_forward and not call.is_view

    def _kept(self, maker: Maker, needed: Linear) -> Linear:
        """Return whether it waits for the backward, which needs it."""
        return self.program.either([needed - self.again.get(maker, NO)])

    @cached_property
    def _entering(self) -> list[list[tuple[Linear, State]]]:
        """Per node that enters: its state with each choice, and whether it is taken."""
        states = self._states
        return [
            [
                (taken, states.of(index, choice))
                for _, choice, taken in self.timed.placed.choices_of(index)
            ]
            for index in sorted(states.entering)
        ]

    @cached_property
    def _states(self) -> States:
        return States(self.timed.posed, self.optimizer)

    @cached_property
    def _update(self) -> Linear:
        """What the optimizer's step takes: see ``optimizer_memory.py``."""
        updated = (
            [(t, s.updated_bytes) for t, s in own if s.updated_bytes is not None]
            for own in self._entering
        )
        sizes = [total(taken * size for taken, size in own) for own in updated if own]
        device = self.timed.posed.candidates.hardware.device.kind
        if not sizes or not update_bytes(self.optimizer, (1,), device):
            return NO
        if device != "cpu":
            return total(sizes)
        unit = max(max(size.terms.values(), default=1.0) for size in sizes) or 1.0
        most = self.program.column(above=3.0)
        for before, size in zip([NO, *sizes], sizes, strict=False):
            self.program.require(most - (before + size * 2.0) * (1 / unit), 0.0)
        return most * unit
