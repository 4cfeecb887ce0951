"""The order of the passes; a whole model goes through it."""

from __future__ import annotations

from tests.compiler.search.hand_made import planner
from tests.models import zoo
from tests.models.searched import searched

from partita.compiler.invariants import matched, placed, settled, well_formed
from partita.compiler.ir.again import again_key
from partita.compiler.ir.boxing import is_box
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import info
from partita.compiler.rules.table import default_rules
from partita.passes.base import run_sequence
from partita.passes.sequence import sequence


def test_order() -> None:
    model, args, _ = zoo.mlp()
    plan = searched(planner(model, *args, mesh=Mesh(tp=2)))
    names = [step.name for step in sequence(plan, default_rules)]
    assert names == [
        "expand-ops",
        "recompute",
        "annotate-placements",
        "insert-collectives",
    ]


def test_a_plan_is_carried_out() -> None:
    model, args, _ = zoo.mlp()
    found = planner(model, *args, mesh=Mesh(dp=2, tp=2))
    for seed in range(3):
        plan = found.random(seed)
        before = found.captured.program
        after = run_sequence(before, sequence(plan, default_rules))
        for invariant in (well_formed, placed, matched, settled):
            invariant(after)
        boxed = [info(node).key for node in after.calls() if is_box(node)]
        assert sorted(boxed) == sorted(b.key for b in plan.boxings if not b.enters)
        kept = [info(node).key for node in after.nodes() if not is_box(node)]
        assert kept == list(plan.order)
        parts = {key for item in plan.expanded.values() for key in item.nodes}
        parts |= {again_key(key) for key in plan.recompute}
        whole = {info(node).key for node in before.nodes()}
        assert {key for key in kept if key not in parts} == whole - set(plan.expanded)
