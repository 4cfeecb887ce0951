"""Every way to keep to a memory limit, tried: all placements, all that is made again.

What is held is counted here call by call, from the nodes' own operands, by no code of
the search but for what one boxing takes.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import inf
from typing import NamedTuple

from torch import fx

from partita.compiler.capture.schemas import may_share_memory
from partita.compiler.cost.held_bytes import held_bytes
from partita.compiler.cost.optimizer_memory import moments_of, update_bytes
from partita.compiler.ir.program import InputKind, OutputKind, Phase, info
from partita.compiler.ir.sbp import Placement
from partita.compiler.plan.document import boxing_key
from partita.compiler.search.boxed import Boxed, Boxings
from partita.compiler.search.lies import Lies
from partita.compiler.search.pose import Posed
from partita.compiler.search.problem import Choice, Problem, cost_of, made_placement

Memory = tuple[int, int] | tuple[int, int, Placement]
"""A tensor as its node makes it, or a copy of it that is placed otherwise."""

Moment = tuple[int, int, int]
"""A call, what is made again for it (or ``END``), and a part of that or ``CALL``.

Parts before a call are boxings of its operands, those behind it of what leaves.
"""

END = CALL = 1_000_000


class Use(NamedTuple):
    """When something is used, by which node, and whether in the backward."""

    moment: Moment
    user: int
    is_backward: bool


class Run:
    """One assignment, run call by call with some of it made again."""

    def __init__(self, posed: Posed, choices: Sequence[int], optimizer: str) -> None:
        self.posed = posed
        self.problem: Problem = posed.problem
        pairs = zip(self.problem.nodes, choices, strict=True)
        self.chosen: list[Choice] = [node.choices[at] for node, at in pairs]
        self.seconds = cost_of(self.problem, choices)
        self.calls = [
            (index, item)
            for index, item in enumerate(posed.items)
            if isinstance(item, fx.Node) and item.op == "call_function"
        ]
        self.inputs = 0
        self.state, self.update = self._state(optimizer)
        self.memory: dict[tuple[int, int], Memory] = {}
        self.sizes: dict[Memory, int] = {}
        self.lies = Lies(posed)
        self.boxings = Boxings(posed)
        self.copied = 0  # of gradients that do not lie in order, as they leave
        self.boxed: dict[Memory, Boxed] = {}
        self.boxed_for: dict[tuple[Memory, int], int] = {}
        self.through: dict[Memory, int] = {}  # the first view of a copy
        self.seconds_of: dict[Memory, float] = {}
        self.leaving: dict[Memory, bool] = {}
        self.trains = bool(posed.candidates.program.trained)
        self._record()

    def _state(self, optimizer: str) -> tuple[int, int]:
        program = self.posed.candidates.program
        trained = {r.name for r in program.outputs if r.kind is OutputKind.GRADIENT}
        state, updated = 0, list[int]()
        for node, role in program.placeholders():
            index = self.posed.index(node)
            stored = made_placement(self.chosen[index], 0)
            if role.kind is InputKind.INPUT:
                self.inputs += self._bytes((index, 0), stored)
            else:
                state += self._bytes((index, 0), stored)
            if role.kind is InputKind.PARAMETER and role.name in trained:
                held = self.chosen[index].held
                assert held is not None
                size = self._bytes((index, 0), held.optimizer)
                copies = moments_of(optimizer) + (held.optimizer != stored)
                state += size * copies
                updated.append(size)
        device = self.posed.candidates.hardware.device.kind
        return state, update_bytes(optimizer, updated, device)

    def _bytes(self, value: tuple[int, int], placement: Placement) -> int:
        type_ = self.problem.nodes[value[0]].result_types[value[1]]
        assert type_ is not None
        return held_bytes(type_, placement, self.problem.mesh)

    def _record(self) -> None:
        """Write down what is made when, of what, and who uses it."""
        self.uses: dict[Memory, list[Use]] = {}
        self.made: dict[Memory, Moment] = {}
        self.sources: dict[Memory, list[Memory]] = {}
        self.together: dict[Memory, list[Memory]] = {}
        for index, item in enumerate(self.posed.items):
            if isinstance(item, fx.Node) and item.op == "placeholder":
                self.memory[index, 0] = (index, 0)
        called_at: dict[int, int] = {}
        for time, (index, item) in enumerate(self.calls):
            called_at[index] = time
            is_backward = info(item).phase is not Phase.FORWARD
            node = self.problem.nodes[index]
            seen = [self._see(index, at, time, is_backward) for at in self._at(index)]
            results = [r for r, t in enumerate(node.result_types) if t is not None]
            if seen and may_share_memory(item.target):
                if not is_backward:
                    self.through.setdefault(seen[0], time)
                self.memory |= {(index, result): seen[0] for result in results}
                continue
            made: list[Memory] = [(index, result) for result in results]
            for result in results:
                value = index, result
                self.memory[value] = value
                placement = made_placement(self.chosen[index], result)
                choice = self.chosen[index]
                seconds = choice.seconds - choice.broken_s
                moment = (time, END, CALL)
                self._make(value, self._bytes(value, placement), moment, seconds, seen)
                self.together[value] = made
        behind: dict[int, list[tuple[int, int]]] = {}
        for index, item in enumerate(self.posed.items):
            if not isinstance(item, fx.Node):
                ((source, result),) = self.problem.nodes[index].operands
                own = behind.setdefault(called_at.get(source, -1), [])
                own.append((result, -index))
        for index, item in enumerate(self.posed.items):
            if isinstance(item, fx.Node):
                continue
            (value,) = self.problem.nodes[index].operands
            want = self.chosen[index].signature.operands[0]
            is_as_made = made_placement(self.chosen[value[0]], value[1]) == want
            if item.kind is OutputKind.OUTPUT and self.trains and is_as_made:
                continue  # a step hands it to nobody
            time = called_at.get(value[0], -1)
            place = sorted(behind[time]).index((value[1], -index))
            part = CALL if is_as_made else CALL + 1 + 2 * place
            in_backward = item.kind is OutputKind.GRADIENT
            memory = self._see(index, 0, time, in_backward, part)
            is_kept = item.kind in (OutputKind.GRADIENT, OutputKind.LOSS)
            if is_as_made and self.lies.is_copied(index, want):
                self.copied += self._bytes(value, want)
                is_kept = False
            self.leaving[memory] = is_kept or self.leaving.get(memory, False)

    def _at(self, index: int) -> range:
        return range(len(self.problem.nodes[index].operands))

    def _make(
        self,
        memory: Memory,
        size: int,
        moment: Moment,
        seconds: float,
        sources: list[Memory],
    ) -> None:
        self.sizes[memory], self.made[memory] = size, moment
        self.seconds_of[memory], self.sources[memory] = seconds, sources

    def _see(
        self,
        user: int,
        at: int,
        time: int,
        is_backward: bool,
        leaves: int | None = None,
    ) -> Memory:
        """Return the memory that a node sees as an operand, boxed if need be."""
        part = 2 * at if leaves is None else leaves
        used = (time, END, CALL if leaves is None else leaves + (leaves > CALL))
        value = self.problem.nodes[user].operands[at]
        want = self.chosen[user].signature.operands[at]
        made = made_placement(self.chosen[value[0]], value[1])
        memory = self.memory[value]
        if want != made:
            copy = (*value, want)
            if copy not in self.made:
                type_ = self.problem.nodes[value[0]].result_types[value[1]]
                assert type_ is not None
                use = Use((time, END, part), user, is_backward)
                self.uses.setdefault(memory, []).append(use)
                seconds = self.problem.box_seconds(type_, made, want)
                there = (time, END, part + 1)
                boxed = self.boxings.of(value, made, want)
                num_bytes = self._bytes(value, want) + boxed.padding_bytes
                self._make(copy, num_bytes, there, seconds, [memory])
                self.together[copy] = [copy]
                self.boxed[copy] = boxed
            memory = copy
            self.boxed_for.setdefault((copy, user), part)
        self.uses.setdefault(memory, []).append(Use(used, user, is_backward))
        return memory

    def makers(self) -> list[Memory]:
        """Return what could be made again, one tensor of each maker."""
        forward = [
            time
            for time, (_, item) in enumerate(self.calls)
            if info(item).phase is Phase.FORWARD
        ]
        return [
            memory
            for memory, moment in self.made.items()
            if moment <= (max(forward, default=-1), END, CALL)
            and self.together[memory][0] == memory
            and not any(one in self.leaving for one in self.together[memory])
        ]

    def ways(self) -> Iterator[frozenset[Memory]]:
        """Yield all that may be made again together."""
        makers = self.makers()
        wanted = [m for m in makers if self._is_needed(m, frozenset(makers))]
        for taken in product([False, True], repeat=len(wanted)):
            again = frozenset(
                m for m, is_taken in zip(wanted, taken, strict=True) if is_taken
            )
            if all(self._is_needed(m, again) for m in again) and self._is_whole(again):
                yield again

    def _is_whole(self, again: Collection[Memory]) -> bool:
        """Whether every copy that is needed of what is made again is, too."""
        copies = (m for m in self.makers() if len(m) == 3 and m not in again)
        return not any(
            self._first(s) in again and self._is_needed(copy, again)
            for copy in copies
            for s in self.sources[copy]
        )

    def _first(self, memory: Memory) -> Memory:
        return self.together.get(memory, [memory])[0]

    def _is_needed(self, maker: Memory, again: Collection[Memory]) -> bool:
        return bool(self._needs(maker, again))

    def _needs(self, maker: Memory, again: Collection[Memory]) -> list[Moment]:
        """Return when the backward needs what a maker makes, if it is made again.

        A call works again before the call that needs it, a boxing where that, or the
        view through which it needs it, would box it.
        """
        found = [need for one in self.together[maker] for need in self._own(one, again)]
        if not found:
            return []
        (call, made_for, part), user = min(found)
        if len(maker) == 2:
            return [(call, self.made[maker][0], CALL)]
        if (maker, user) in self.boxed_for:
            return [(call, made_for, self.boxed_for[maker, user])]
        if maker in self.through:
            return [(call, self.through[maker], 0)]
        return [(call, made_for, part)]

    def _own(
        self, memory: Memory, again: Collection[Memory]
    ) -> list[tuple[Moment, int]]:
        """Return when the backward uses something, and who does."""
        uses = self.uses.get(memory, ())
        found = [(use.moment, use.user) for use in uses if use.is_backward]
        for user in again:
            if user != self._first(memory) and memory in self.sources[user]:
                found += [(need, user[0]) for need in self._needs(user, again)]
        return found

    def again_seconds(self, again: Collection[Memory]) -> float:
        """Return what making these again takes."""
        return sum(self.seconds_of[memory] for memory in again)

    def peak(self, again: Collection[Memory]) -> int:
        """Return the most that is held at any moment: see ``live``."""
        return max(self.live(again).values())

    def live(self, again: Collection[Memory]) -> dict[Moment, int]:
        """Return what is held by moment."""
        num_calls = len(self.calls)
        made_again = {maker: min(self._needs(maker, again)) for maker in again}
        openings = [(memory, _before(self.made[memory])) for memory in self.boxed]
        openings += [(m, moment) for m, moment in made_again.items() if len(m) == 3]
        openings = [(m, moment) for m, moment in openings if self.boxed[m].first_bytes]
        moments = {
            *((call, END, CALL) for call in range(num_calls + 2)),
            *(moment for maker, moment in made_again.items() if len(maker) == 2),
            *(moment for _, moment in openings),
            *(_after(moment) for _, moment in openings),
        }
        held = dict.fromkeys(sorted(moments), self.state)
        for moment in held:
            held[moment] += self.inputs * (moment[0] <= num_calls)
            held[moment] += self.update * (moment[0] > num_calls)
            held[moment] += self.copied * (moment[0] >= num_calls)
        for memory, opening in openings:
            held[opening] += self.boxed[memory].first_bytes
            held[_after(opening)] += self.boxed[memory].rest_bytes
        for memory, first in self.made.items():
            uses = self.uses.get(memory, [])
            early = [use.moment for use in uses if not use.is_backward]
            late = [moment for moment, _ in self._own(memory, again)]
            spans = [(first, max([first, *early]))]
            if memory in self.leaving:
                spans.append((first, (num_calls + self.leaving[memory], END, CALL)))
            maker = self._first(memory)
            if maker in again:
                begin = made_again[maker]
                if memory in self.boxed and self.boxed[memory].first_bytes:
                    begin = _after(begin)
                spans.append((begin, max([begin, *late])))
            elif late:
                spans.append((first, max(late)))
            for moment in held:
                if any(begin <= moment <= last for begin, last in spans):
                    held[moment] += self.sizes[memory]
        return held


def _after(moment: Moment) -> Moment:
    return (moment[0], moment[1], moment[2] + 1)


def _before(moment: Moment) -> Moment:
    return (moment[0], moment[1], moment[2] - 1)


def possible(problem: Problem) -> list[tuple[int, ...]]:
    """Return every assignment that holds its ties and has its boxings."""
    ranges = (range(len(node.choices)) for node in problem.nodes)
    return [choices for choices in product(*ranges) if cost_of(problem, choices) < inf]


def key_of(posed: Posed, memory: Memory) -> str:
    """Return the key by which the search names what makes some memory."""
    key = posed.problem.nodes[memory[0]].key
    return key if len(memory) == 2 else boxing_key(key, memory[1], memory[2])


def thinned(posed: Posed, keep: Sequence[int], most: int, seed: int) -> Posed:
    """Return a problem of at most so many assignments, ``keep`` among them."""
    rng = random.Random(seed)
    kept = [list(range(len(node.choices))) for node in posed.problem.nodes]

    def count() -> float:
        total = 1.0
        for own in kept:
            total *= len(own)
        return total

    while count() > most:
        index = max(range(len(kept)), key=lambda i: (len(kept[i]), rng.random()))
        others = [at for at in kept[index] if at != keep[index]]
        kept[index].remove(rng.choice(others))
    nodes = tuple(
        replace(node, choices=tuple(node.choices[at] for at in own))
        for node, own in zip(posed.problem.nodes, kept, strict=True)
    )
    return replace(posed, problem=replace(posed.problem, nodes=nodes))
