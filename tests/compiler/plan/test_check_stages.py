"""What a plan of several stages says of them together is checked."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from tests.models.pipelines import BATCH, WIDTH, Chain

import partita as pt
from partita.compiler.errors import BadPlan


@cache
def staged() -> pt.Plan:
    batch = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
    options = pt.Options(microbatches=2, schedule="1f1b")
    return pt.plan(Chain(), *batch, mesh="pp=2,dp=2", options=options)


def refused(plan: pt.Plan) -> str:
    with pytest.raises(BadPlan) as caught:
        plan.validate()
    return str(caught.value)


def test_a_parameter_is_at_home_where_its_node_is() -> None:
    plan = staged()
    name, parameter = next(iter(plan.parameters.items()))
    (stage,) = parameter.homes
    moved = replace(parameter, homes=(1 - stage,))
    changed = replace(plan, parameters={**plan.parameters, name: moved})
    assert refused(changed).startswith(
        f"plan: parameters.{name}.homes: found [{1 - stage}], wanted [{stage}], the "
    )


def test_a_node_is_in_the_stage_that_lists_it() -> None:
    plan = staged()
    key = plan.stages[1].nodes[0]
    moved = replace(plan.nodes[key], stage=0)
    changed = replace(plan, nodes={**plan.nodes, key: moved})
    assert refused(changed) == (
        f"plan: nodes.{key}.stage: found 0, but stages[1] lists it; to cut otherwise, "
        "plan again"
    )


def test_another_number_of_microbatches_is_told_from_what_enters() -> None:
    said = refused(replace(staged(), microbatches=4))
    assert said.startswith("plan: nodes.input:")
    assert said.endswith(" in each microbatch; microbatches is 4")


def test_the_mesh_is_that_of_the_stages() -> None:
    said = refused(replace(staged(), mesh=pt.Mesh(pp=4, dp=1)))
    assert said == "plan: mesh: found pp=4,dp=1, wanted pp=2,dp=2, as the stages are of"


def test_ranks_receive_what_they_use() -> None:
    plan = staged()
    rows = [
        " ".join(action for action in row.split() if "_" not in action)
        for row in plan.schedule.rows
    ]
    said = refused(replace(plan, schedule=replace(plan.schedule, rows=tuple(rows))))
    assert said == (
        "plan: schedule '1f1b': rank 0 has 0B0, which uses what 1B0 makes on rank 1; "
        "want 0RECV_B0 before it"
    )
