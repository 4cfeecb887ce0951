"""A captured model whose batch is planned in one piece, or in parts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from partita.compiler.capture.capture import Captured
from partita.compiler.ir.mesh import Mesh
from partita.microbatched import Microbatched
from partita.one_mesh.planner import Planner
from partita.one_mesh.rules_for import rules_for
from partita.options import Options


@dataclass
class Batch:
    """A captured model, its batch in one piece or in parts.

    The planner asked for last is kept, with all that it has posed and priced.
    """

    captured: Captured
    class_name: str
    options: Options
    known: dict[int, tuple[Captured, Options]] = field(
        default_factory=dict[int, tuple[Captured, Options]]
    )
    last: tuple[int, Planner] | None = None

    @cached_property
    def _microbatched(self) -> Microbatched:
        return Microbatched(self.captured, self.options.rules)

    def planner(self, count: int, mesh: Mesh) -> Planner:
        """Return what plans the program of one of ``count`` microbatches.

        Raises:
            BadOptions: when the batch cannot be cut so.
        """
        if count not in self.known:
            captured = self._microbatched.of(count)
            rules = rules_for(captured, self.options.rules)
            self.known[count] = captured, replace(self.options, rules=rules)
        if self.last is None or self.last[0] != count or self.last[1].mesh != mesh:
            captured, options = self.known[count]
            self.last = count, Planner(captured, self.class_name, mesh, options)
        return self.last[1]
