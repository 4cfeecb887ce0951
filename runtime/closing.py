"""The last backward of a stage, and the completing of sums that begins in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from partita.compiler.ir.local_program import Closing
from partita.compiler.ir.program import OutputKind
from partita.runtime.executor import Executable, bind_program, only
from partita.runtime.feeds import FeedKey
from partita.runtime.microbatches import adding
from partita.runtime.share import Share

_NEEDLESS = tuple(kind for kind in OutputKind if kind is not OutputKind.OUTPUT)


@dataclass(frozen=True)
class BoundClosing:
    """A ``Closing`` that can run here.

    Attributes:
        phases: of the backward, adding to sums.
        later: by phase, what those behind it still need.
        begun: by phase, the numbers of what begins behind it.
        halves: what begins, by number, and what waits for it.
    """

    phases: tuple[Executable, ...]
    later: tuple[frozenset[FeedKey], ...]
    begun: tuple[tuple[int, ...], ...]
    halves: Mapping[int, tuple[Executable, Executable]]

    @classmethod
    def of(cls, closing: Closing, share: Share) -> BoundClosing:
        """Bind what a stage's share has of it."""
        groups, compilation = share.groups, share.programs.compilation
        phases: list[Executable] = []
        for phase in closing.phases:
            bound = bind_program(phase, groups, share.own, compilation)
            local, _ = adding(only(bound.local, _NEEDLESS))
            phases.append(replace(bound, local=local))
        halves = {
            number: (bind_program(first, groups), bind_program(second, groups))
            for number, (first, second) in closing.halves.items()
        }
        later = needed_behind(phases)
        return cls(tuple(phases), later, closing.begun, halves)


def needed_behind(parts: Sequence[Executable]) -> tuple[frozenset[FeedKey], ...]:
    """Return by part what those behind it are fed."""
    found: list[frozenset[FeedKey]] = []
    for number in range(len(parts)):
        behind = (role for part in parts[number + 1 :] for role in part.local.inputs)
        found.append(frozenset((role.kind, role.name) for role in behind))
    return tuple(found)
