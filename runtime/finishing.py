"""Bring what microbatches added up to where it leaves, all at once or bit by bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from partita.compiler.ir.program import InputKind, OutputKind, OutputRole
from partita.runtime.executor import Executable
from partita.runtime.feeds import FeedKey

Half = tuple[Executable, Executable]
"""What begins to complete sums, and what waits for that."""


@dataclass
class Finishing:
    """The sums of one step, and what completes them.

    Attributes:
        completing: programs that bring sums somewhere, each sum in one of them.
        of: by output, the sum that it is of.
        sums: what was added up; they are let go of on the way.
        halves: of those programs that may begin before all sums are whole, by number.
    """

    completing: Sequence[Executable]
    of: Mapping[OutputRole, FeedKey]
    sums: dict[FeedKey, torch.Tensor]
    halves: Mapping[int, Half] = field(default_factory=dict[int, Half])
    _begun: dict[int, dict[FeedKey, torch.Tensor]] = field(
        default_factory=dict[int, dict[FeedKey, torch.Tensor]], init=False
    )

    def begin(self, number: int) -> None:
        """Begin a program whose sums are whole, and that no other one takes."""
        by_name = self._by_name
        first, _ = self.halves[number]
        feeds = {key: self.sums.pop(by_name[key[1]]) for key in _entering(first)}
        self._begun[number] = {
            (InputKind.SAVED, role.name): value
            for role, value in first.by_role(feeds).items()
            if role.kind is OutputKind.SAVED and value is not None
        }

    def end(self) -> dict[OutputRole, torch.Tensor | None]:
        """Complete what is left, wait for what has begun; return what leaves."""
        by_name = self._by_name
        waiting = [
            by_name[name]
            for number, program in enumerate(self.completing)
            if number not in self._begun
            for _, name in _entering(program)
        ]
        done = {role for program in self.completing for role in program.local.outputs}
        as_made = {role: key for role, key in self.of.items() if role not in done}
        left: dict[OutputRole, torch.Tensor | None] = {}
        for number, program in enumerate(self.completing):
            if number in self._begun:
                left |= self.halves[number][1].by_role(self._begun.pop(number))
                continue
            feeds: dict[FeedKey, torch.Tensor] = {}
            for kind, name in _entering(program):
                key = waiting.pop(0)
                is_last = key not in waiting and key not in as_made.values()
                feeds[kind, name] = self.sums.pop(key) if is_last else self.sums[key]
            left |= program.by_role(feeds)
            del feeds
        return left | {role: self.sums[key] for role, key in as_made.items()}

    @property
    def _by_name(self) -> dict[str, FeedKey]:
        """By the name that a program has for it, the sum."""
        return {str(role): key for role, key in self.of.items()}


def _entering(program: Executable) -> list[FeedKey]:
    """Return the sums that a program takes, in order."""
    kind = InputKind.ACCUMULATED
    return [(r.kind, r.name) for r in program.local.inputs if r.kind is kind]
