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
