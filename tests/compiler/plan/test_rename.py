"""A stage's plan under the names of a stage that is alike is that stage's own plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.compiler.search.alike_stages import document, planner_of, stages
from tests.models.searched import searched

from partita.compiler.plan.rename import renamed
from partita.compiler.plan.turns import END


@pytest.mark.parametrize("recompute", [(), ("layers.*",)], ids=["kept", "made again"])
def test_the_plan_is_that_of_the_stage_itself(recompute: tuple[str, ...]) -> None:
    _, one, other, _ = stages()
    plan = searched(planner_of(one, recompute))
    assert plan.expanded, "no op is taken apart"
    assert plan.boxings
    assert any(key.endswith("~again") for key in plan.nodes) == bool(recompute)
    same = replace(searched(planner_of(other, recompute)), options=plan.options)
    assert document(renamed(plan, one, other)) == document(same)


def test_when_messages_pass_is_told_under_the_other_names() -> None:
    _, one, other, _ = stages()
    plan = searched(planner_of(one, ()))
    first, last = plan.boxings[0], plan.boxings[-1]
    ahead, late = {first.key: plan.order[-1]}, {first.key: last.key, last.key: END}
    found = renamed(replace(plan, ahead=ahead, late=late), one, other)
    first, last = found.boxings[0], found.boxings[-1]
    assert first.key != plan.boxings[0].key
    assert found.ahead == {first.key: found.order[-1]}
    assert found.late == {first.key: last.key, last.key: END}
