"""What the stages of a line hold, and from where to where a stage fits into a limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from partita.compiler.search.cut_line import Line
from partita.compiler.search.model import Ints


@dataclass(frozen=True, slots=True)
class CutMemory:
    """What a rank holds of a stage, and how much it may.

    Attributes:
        state_bytes: by parameter, all that is held of it for the whole step, on every
            stage that uses it; nothing for those that it lacks.
        saved_bytes: by call of the forward, what the backward needs of what it makes
            of a microbatch; counted where it is made.
        live: by stage, the microbatches of which that is held at once, as
            ``Schedule.live`` has it.
        limit_bytes: what a rank has for both; ``None`` where nobody asks.
    """

    state_bytes: Mapping[str, int]
    saved_bytes: Mapping[str, int]
    live: tuple[int, ...]
    limit_bytes: int | None = None


class HeldAlong:
    """Answers for the stages of a line."""

    def __init__(self, line: Line, memory: CutMemory) -> None:
        self.live = memory.live
        self.saved = [memory.saved_bytes.get(key, 0) for key in line.forward]
        self.used = line.used
        self.state_bytes = {
            name: memory.state_bytes.get(name, 0) for name in set().union(*line.used)
        }

    def held(self, stage: int, begin: int, end: int) -> int:
        """Return the bytes that a stage from one boundary to another holds."""
        names = set[str]().union(*self.used[begin:end])
        saved = sum(self.saved[begin:end])
        return sum(map(self.state_bytes.__getitem__, names)) + self.live[stage] * saved

    def by_stage(self, ends: Sequence[int]) -> tuple[int, ...]:
        """Return what every stage holds, given where they end."""
        begins = (0, *ends)
        return tuple(self.held(s, begins[s], end) for s, end in enumerate(ends))

    def earliest(self, limit_bytes: int) -> list[Ints]:
        """Return by stage, for each boundary where it may end, where it may begin.

        The first such boundary; the end itself where even one call is too much. It
        never falls along the line, for a stage within another holds no more.
        """
        found = {live: self._earliest(live, limit_bytes) for live in set(self.live)}
        return [found[live] for live in self.live]

    def _earliest(self, live: int, limit_bytes: int) -> Ints:
        found = [0]
        count = dict.fromkeys(self.state_bytes, 0)
        held = begin = 0
        for end, names in enumerate(self.used):
            held += live * self.saved[end]
            for name in names:
                held += 0 if count[name] else self.state_bytes[name]
                count[name] += 1
            while held > limit_bytes:
                held -= live * self.saved[begin]
                for name in self.used[begin]:
                    count[name] -= 1
                    held -= 0 if count[name] else self.state_bytes[name]
                begin += 1
            found.append(begin)
        return np.array(found)
