"""Until when tensors are used and needed, and what was made again, in a program.

Every answer is an expression that is 1 where it is so. Uses and needs go through views
to the memory that these share, and through a boxing to its source where the boxing is
made. What is made again needs its operands when that is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from partita.compiler.ir.sbp import Placement
from partita.compiler.search.call_times import Tensor, Use
from partita.compiler.search.linear import NO, YES, Linear, total
from partita.compiler.search.placement_program import Pair
from partita.compiler.search.timed_uses import Copy, Maker, TimedUses


class Marks(NamedTuple):
    """What is so of tensors, as they are made, and of copies."""

    of_tensor: dict[Tensor, Linear]
    of_copy: dict[Copy, Linear]


class _MadeAgain(NamedTuple):
    """What has been made again, and of which tensors the backward has needed some."""

    makers: dict[Maker, Linear]
    begun: dict[Tensor, Linear]


class MemoryNeeds:
    """Answers for any moment, given what may be made again.

    Args:
        timed: who uses what.
        again: whether each maker works again; those that it lacks do not.
    """

    def __init__(self, timed: TimedUses, again: dict[Maker, Linear]) -> None:
        self.timed = timed
        self.program = timed.program
        self.again = again
        self._known: dict[int, _MadeAgain] = {}

    def _created(self, value: Tensor, want: Placement, by: int | None) -> Linear:
        """Return whether a copy was made by a moment; ``None``: in the forward."""
        parts: list[Linear] = []
        users = self.timed.takers(value, want)
        called = total(boxed for use, boxed in users if use[0] in self.timed.calls)
        for use, boxed in users:
            call = self.timed.calls.get(use[0])
            if call is None:  # it is boxed right there if nobody else wants it so
                if by is not None and self.timed.boxed_at(use) < by:
                    parts.append(boxed - called if called.terms else boxed)
            elif call.is_forward if by is None else self.timed.boxed_at(use) < by:
                parts.append(boxed)
        return self.program.either(parts)

    def uses_at(self, moment: int) -> Marks:
        """Return what the forward uses during this call or later."""
        program, marks = self.program, Marks({}, {})
        for index in reversed(range(len(self.timed.nodes))):
            for value in self.timed.values(index):
                users = self.timed.uses(value)
                parts: list[Linear] = []
                for place, (use, pair) in enumerate(users):
                    call = self.timed.calls.get(use[0])
                    if call is None and self.timed.is_early(index):
                        if self.timed.boxed_at(use) >= moment:
                            parts += self.freshly_boxed(users[:place], pair)
                    if call is None or not call.is_forward:
                        continue
                    if call.time >= moment:
                        parts += self._source_used(users[:place], use, pair, moment)
                    elif self.timed.is_view(use):
                        for seen in self.timed.values(use[0]):
                            used = marks.of_tensor[seen]
                            parts.append(program.both(used, pair.as_made))
                marks.of_tensor[value] = program.either(parts)
                for want in self.timed.wants(value):
                    created = self._created(value, want, moment)
                    if not created.is_no:
                        used = self._copy_used(value, want, moment, created, marks)
                        marks.of_copy[*value, want] = used
        return marks

    def _source_used(
        self,
        before: list[tuple[Use, Pair]],
        use: Use,
        pair: Pair,
        moment: int | None,
    ) -> Iterable[Linear]:
        """Yield how a use needs a tensor itself: as made, or to be boxed there."""
        if moment is not None and self.timed.boxed_at(use) < moment:
            return [pair.as_made]
        known = [self._boxed_before(before, want) for want in pair.boxed]
        if any(part.terms for part in known):
            return [pair.as_made, *self.freshly_boxed(before, pair)]
        return [YES]

    def freshly_boxed(
        self, before: list[tuple[Use, Pair]], pair: Pair
    ) -> Iterable[Linear]:
        """Yield how a use boxes a tensor that none of those before it boxes so."""
        for want, boxed in pair.boxed.items():
            yield boxed - self._boxed_before(before, want)

    def _boxed_before(self, before: list[tuple[Use, Pair]], want: Placement) -> Linear:
        return total(
            other.boxed[want]
            for (node, _), other in before
            if node in self.timed.calls and want in other.boxed
        )

    def _copy_used(
        self,
        value: Tensor,
        want: Placement,
        moment: int,
        created: Linear,
        marks: Marks,
    ) -> Linear:
        program, parts = self.program, list[Linear]()
        for use, pair in self.timed.uses(value):
            call, boxed = self.timed.calls.get(use[0]), pair.boxed.get(want, NO)
            if call is None or not call.is_forward:
                continue
            if call.time >= moment:
                is_there = self.timed.boxed_at(use) < moment
                parts.append(boxed if is_there else program.both(boxed, created))
            elif self.timed.is_view(use):
                for seen in self.timed.values(use[0]):
                    parts.append(program.both(marks.of_tensor[seen], boxed))
        return program.either(parts)

    def needs_at(self, moment: int | None) -> Marks:
        """Return what the backward needs at a moment or later; ``None``: at all.

        What leaves the program is needed until then, and not counted with ``None``.
        """
        program, marks = self.program, Marks({}, {})
        done = {} if moment is None else self.made_again_by(moment - 1)
        ahead = {m: again - done.get(m, NO) for m, again in self.again.items()}
        for index in reversed(range(len(self.timed.nodes))):
            for value in self.timed.values(index):
                users = self.timed.uses(value)
                parts: list[Linear] = []
                for want in self.timed.wants(value):
                    created = self._created(value, want, moment)
                    takers = self.timed.takers(value, want)
                    needed = self._needed_by(takers, moment, created, ahead, marks)
                    marks.of_copy[*value, want] = program.either(needed)
                    parts.append(ahead.get((*value, want), NO))
                takers = [(use, self._as_made(use, own, moment)) for use, own in users]
                parts += self._needed_by(takers, moment, YES, ahead, marks)
                for place, (use, pair) in enumerate(users):
                    call = self.timed.calls.get(use[0])
                    if call is None:
                        if moment is None or self.timed.is_early(index):
                            continue
                        if self.timed.boxed_at(use) >= moment:
                            parts += self.freshly_boxed(users[:place], pair)
                    elif not call.is_forward:
                        if moment is None or call.time >= moment:
                            parts += self._source_used(users[:place], use, pair, moment)
                marks.of_tensor[value] = program.either(parts)
        return marks

    def _as_made(self, use: Use, pair: Pair, moment: int | None) -> Linear:
        """Return whether a use takes a tensor as made, that is needed until then.

        Of what is copied as it leaves, the copy is there when the optimizer steps.
        """
        if moment is None or moment <= self.timed.leaving or use[0] in self.timed.calls:
            return pair.as_made
        is_copied = self.timed.lies.is_copied
        return pair.as_made - total(
            taken
            for (made, want), taken in pair.ways.items()
            if made == want and is_copied(use[0], want)
        )

    def _needed_by(
        self,
        takers: Iterable[tuple[Use, Linear]],
        moment: int | None,
        created: Linear,
        ahead: dict[Maker, Linear],
        marks: Marks,
    ) -> Iterable[Linear]:
        """Yield the needs of those who take a tensor, or a copy of it, so."""
        both = self.program.both
        for use, taken in takers:
            call = self.timed.calls.get(use[0])
            if taken.is_no:
                continue
            if call is None:
                if moment is not None and moment <= self.timed.end(use[0]):
                    yield both(taken, created)
                continue
            is_there = moment is not None and self.timed.boxed_at(use) < moment
            known = taken if is_there else both(taken, created)
            if not call.is_forward and (moment is None or call.time >= moment):
                yield known
            if use[0] in self.again:
                yield both(ahead[use[0]], known)
            if self.timed.is_view(use):
                for seen in self.timed.values(use[0]):
                    yield both(marks.of_tensor[seen], known)

    def made_again_by(self, moment: int) -> dict[Maker, Linear]:
        """Return what has been made again by the end of a moment.

        A copy counts from where its boxing begins.
        """
        return self._made_again(moment).makers

    def _made_again(self, moment: int) -> _MadeAgain:
        if moment <= self.timed.forward_end:
            return _MadeAgain({}, {})
        if moment not in self._known:
            moments = self.timed.moments
            call = moments.call_at(moment)
            if moment == moments.of_call(call):
                found = _MadeAgain({}, {})
                self._work_out(found, moment, lambda _: found)
            else:
                before = self._made_again(moments.of_call(call - 1))
                after = self._made_again(moments.of_call(call))
                found = self._made_again_between(moment, before, after)
            self._known[moment] = found
        return self._known[moment]

    def _made_again_between(
        self, moment: int, before: _MadeAgain, after: _MadeAgain
    ) -> _MadeAgain:
        """Return which calls were, while what a call needs is made again or boxed.

        Those up to that of the moment are as when that call runs, others as before.
        """
        moments, calls = self.timed.moments, self.timed.calls
        call, found = moments.call_at(moment), _MadeAgain({}, {})

        def at(use: Use) -> _MadeAgain:
            """Return what counts where a use boxes its operand, made again."""
            user = calls[use[0]]
            ahead = user.time - self.timed.boxed_at(use)
            is_done = moments.of_again(call, user.number) - ahead <= moment
            return after if is_done else before

        for maker in self.again:
            if isinstance(maker, int):
                is_done = moments.of_again(call, calls[maker].number) <= moment
                done = after if is_done else before
                found.makers[maker] = done.makers.get(maker, NO)
        self._work_out(found, moment, at)
        return found

    def _work_out(
        self, found: _MadeAgain, moment: int, at: Callable[[Use], _MadeAgain]
    ) -> None:
        """Add what has been made again by a moment to the calls that are known.

        ``at`` has what is made again where a use boxes its operand.
        """
        program, (makers, begun) = self.program, found
        boxed_at, calls = self.timed.boxed_at, self.timed.calls

        def called_at(use: Use) -> int:
            return calls[use[0]].time

        def begun_by(
            takers: Iterable[tuple[Use, Linear]],
            time: Callable[[Use], int],
            known: Callable[[Use], _MadeAgain],
        ) -> Iterable[Linear]:
            for use, taken in takers:
                call = calls.get(use[0])
                if call is None or taken.is_no:
                    continue
                if not call.is_forward and time(use) <= moment:
                    yield taken
                if not call.is_forward:
                    continue
                done = known(use)
                if use[0] in done.makers:
                    yield program.both(done.makers[use[0]], taken, is_exact=True)
                if self.timed.is_view(use):
                    for seen in self.timed.values(use[0]):
                        there = done.begun.get(seen, NO)
                        yield program.both(there, taken, is_exact=True)

        for index in reversed(range(len(self.timed.nodes))):
            for value in self.timed.values(index):
                users = self.timed.uses(value)
                parts: list[Linear] = []
                for want in self.timed.wants(value):
                    takers = self.timed.takers(value, want)
                    again = self.again.get((*value, want))
                    if again is not None:
                        by = program.either(
                            begun_by(takers, boxed_at, at), is_exact=True
                        )
                        done = program.both(again, by, is_exact=True)
                        parts.append(done)
                        makers[*value, want] = done
                    parts.append(self._boxed_in_backward(takers, moment))
                takers = [(use, pair.as_made) for use, pair in users]
                parts += begun_by(takers, called_at, lambda _: found)
                begun[value] = program.either(parts, is_exact=True)
            again = self.again.get(index)
            if again is not None and index not in makers:
                any_ = (begun[value] for value in self.timed.values(index))
                by = program.either(any_, is_exact=True)
                makers[index] = program.both(again, by, is_exact=True)

    def _boxed_in_backward(
        self, takers: Iterable[tuple[Use, Linear]], moment: int
    ) -> Linear:
        """Return whether a copy that the forward lacks was made by a moment."""
        early: list[Linear] = []
        late: list[Linear] = []
        for use, boxed in takers:
            call = self.timed.calls.get(use[0])
            if call is not None and call.is_forward:
                early.append(boxed)
            elif call is not None and self.timed.boxed_at(use) <= moment:
                late.append(boxed)
        either = self.program.either
        if not late or not any(not part.is_no for part in late):
            return NO
        missing = YES - either(early, is_exact=True)
        return self.program.both(either(late, is_exact=True), missing, is_exact=True)
