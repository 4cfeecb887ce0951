"""A stage's plan under the names of a stage that is alike is that stage's own plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.compiler.search.alike_stages import document, planner_of, stages

from partita.compiler.plan.rename import renamed


@pytest.mark.parametrize("recompute", [(), ("layers.*",)], ids=["kept", "made again"])
def test_the_plan_is_that_of_the_stage_itself(recompute: tuple[str, ...]) -> None:
    _, one, other, _ = stages()
    plan = planner_of(one, recompute).search()
    assert plan.expanded, "no op is taken apart"
    assert plan.boxings
    assert any(key.endswith("~again") for key in plan.nodes) == bool(recompute)
    same = replace(planner_of(other, recompute).search(), options=plan.options)
    assert document(renamed(plan, one, other)) == document(same)
