"""What was priced already, for programs that have ops in common.

The stages of a pipeline are programs of their own, and most of their ops occur in many
of them. What an op may do, what that takes, and what boxings of a type of tensor take,
follow from the op or the type, the mesh and the hardware alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from partita.compiler.cost.boxing_prices import Table
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.rules.expansion import Expansion
from partita.compiler.rules.rule import Call, RuleSet


@dataclass(frozen=True, eq=False)
class KnownPrices:
    """Prices on one mesh, of steps of so many microbatches.

    Attributes:
        rules: the table of op rules.
        mesh: the ranks.
        hardware: what is priced by.
        count: how many microbatches a step has.
        choices: what calls may take, by call, segments and what is fixed.
        expansions: the parts of calls that are taken apart.
        boxings: by type and both sets of placements.
    """

    rules: RuleSet
    mesh: Mesh
    hardware: Hardware
    count: int
    choices: dict[object, tuple[Any, ...]] = field(
        default_factory=dict[object, tuple[Any, ...]]
    )
    expansions: dict[Call, Expansion | None] = field(
        default_factory=dict[Call, "Expansion | None"]
    )
    boxings: dict[object, Table] = field(default_factory=dict[object, Table])

    def are_of(
        self, rules: RuleSet, mesh: Mesh, hardware: Hardware, count: int
    ) -> bool:
        """Whether they hold for these."""
        is_same = self.rules is rules and self.hardware is hardware
        return is_same and (self.mesh, self.count) == (mesh, count)
