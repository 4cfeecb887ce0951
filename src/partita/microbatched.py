"""The program of one microbatch, of one number of them after another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from partita.compiler.capture.capture import Captured
from partita.compiler.ir.program import Program
from partita.compiler.rules.rule import RuleSet
from partita.compiler.search.in_time import InTime
from partita.passes.base import run_sequence
from partita.passes.separate_numbers import SeparateNumbers
from partita.passes.split_in_time import SplitInTime


@dataclass(frozen=True)
class Microbatched:
    """A captured model whose batch can be cut, by the rules of its ops.

    What does not depend on the number of microbatches is made once.
    """

    captured: Captured
    rules: RuleSet

    def of(self, count: int) -> Captured:
        """Return what is captured, with the program of one of ``count`` microbatches.

        Raises:
            BadOptions: when the model cannot be cut so; the message says where.
        """
        if count == 1:
            return self.captured
        split = SplitInTime(count, self._in_time.choose(count), self.rules)
        return replace(self.captured, program=run_sequence(self._whole, (split,)))

    @cached_property
    def _whole(self) -> Program:
        return run_sequence(self.captured.program, (SeparateNumbers(),))

    @cached_property
    def _in_time(self) -> InTime:
        return InTime(self._whole, self.rules)


def in_microbatches(captured: Captured, count: int, rules: RuleSet) -> Captured:
    """Return ``captured`` with the program of one of ``count`` microbatches.

    Raises:
        BadOptions: when the model cannot be cut so; the message says where.
    """
    return Microbatched(captured, rules).of(count)
