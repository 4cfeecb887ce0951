"""What a pass is, and how a sequence of them runs.

A pass states which invariants it requires and which it ensures. ``run_sequence``
checks both around every pass, always: they are cheap, and a violation names the pass
to blame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar, Protocol

from partita.compiler.errors import InvariantViolation
from partita.compiler.ir.program import Program

Invariant = Callable[[Program], None]


class Pass(Protocol):
    """A mechanical rewriting of a program; every choice it needs is in the plan."""

    name: ClassVar[str]
    requires: ClassVar[tuple[Invariant, ...]]
    ensures: ClassVar[tuple[Invariant, ...]]

    def run(self, program: Program) -> Program:
        """Return the rewritten program; ``program`` itself stays as it was."""
        ...


def run_sequence(program: Program, sequence: Iterable[Pass]) -> Program:
    """Run passes in order, checking what each requires and ensures.

    Raises:
        InvariantViolation: naming the pass and the invariant.
    """
    for position, step in enumerate(sequence, start=1):
        _check(program, step.requires, f"before pass {step.name} (#{position})")
        program = step.run(program)
        _check(program, step.ensures, f"after pass {step.name} (#{position})")
    return program


def _check(program: Program, invariants: tuple[Invariant, ...], when: str) -> None:
    for invariant in invariants:
        try:
            invariant(program)
        except InvariantViolation as error:
            raise InvariantViolation(
                f"{error} ({invariant.__name__}, {when})"
            ) from error
