"""What every node does on the axis of the microbatches, for any number of them."""

from __future__ import annotations

from dataclasses import dataclass

from partita.compiler.ir.program import Program, info
from partita.compiler.ir.signature import AxisSignature
from partita.compiler.rules.rule import RuleSet
from partita.compiler.search.equal_parts import EqualParts
from partita.compiler.search.in_time_chooser import Chooser


@dataclass
class InTime:
    """What the nodes of one program do, for one number of microbatches after another.

    Where the rules allow of another number what they allowed of the last one, wherever
    they were asked, all does the same.

    Attributes:
        program: of the whole batch.
        rules: the table; rows that were derived for single calls do not count.
    """

    program: Program
    rules: RuleSet
    _last: Chooser | None = None

    def choose(self, count: int) -> dict[str, AxisSignature]:
        """Return, by key, what placeholders and calls do on an axis of so many parts.

        Raises:
            BadOptions: naming the op that needs the whole batch, or inputs that cannot
                be cut into so many equal parts.
        """
        parts = EqualParts(self.program, count)
        if self._last is None or not self._last.is_same_for(parts):
            rules = RuleSet.of(self.rules.rows).in_pieces()
            chooser, self._last = Chooser(self.program, rules, parts), None
            chooser.choose()
            self._last = chooser
        chosen = self._last.chosen
        return {info(node).key: signature for node, signature in chosen.items()}
