"""The order of the passes, and nothing else."""

from __future__ import annotations

from partita.compiler.plan.document import Document
from partita.compiler.rules.rule import RuleSet
from partita.passes.annotate_placements import AnnotatePlacements
from partita.passes.base import Pass
from partita.passes.expand_ops import ExpandOps
from partita.passes.insert_collectives import InsertCollectives
from partita.passes.recompute import Recompute


def sequence(plan: Document, rules: RuleSet) -> tuple[Pass, ...]:
    """Return the passes that carry out ``plan`` on the logical graph, in order."""
    return (
        ExpandOps(plan, rules),
        Recompute(plan),  # of the parts of ops, which may be listed one by one
        AnnotatePlacements(plan, rules),
        InsertCollectives(plan),
    )
