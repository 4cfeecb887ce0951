"""What a plan of several stages says of them together is checked."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from tests.models.pipelines import BATCH, WIDTH, Chain, Hourglass
from torch import nn

import partita as pt
from partita.compiler.errors import BadPlan
from partita.compiler.plan.stage_records import Schedule as Stated
from partita.compiler.schedules.schedule import Action, Schedule
from partita.compiler.schedules.transfers import with_transfers


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


def folded(model: nn.Module) -> pt.Plan:
    """Return a plan of four stages of which the outer and the inner share a rank."""
    batch = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
    options = pt.Options(microbatches=1, schedule="1f1b", time_limit=4.0)
    plan = pt.plan(model, *batch, mesh="pp=4,dp=1", options=options)
    words = "0F0 3F0 3B0 0B0", "1F0 2F0 2B0 1B0"
    compute = tuple(tuple(map(Action.parse, row.split())) for row in words)
    made = with_transfers(Schedule("vee", 1, (0, 1, 1, 0), compute, (1,) * 4))
    schedule = replace(
        plan.schedule,
        rank_of=made.rank_of,
        rows=tuple(" ".join(map(str, row)) for row in made.rows),
    )
    stages = tuple(
        replace(stage, ranks=(row,))
        for stage, row in zip(plan.stages, made.rank_of, strict=True)
    )
    return replace(plan, mesh=pt.Mesh(pp=2), stages=stages, schedule=schedule)


def test_rows_receive_what_stages_of_other_rows_take() -> None:
    folded(Chain(4)).validate()
    assert refused(folded(Hourglass(2))) == (
        "plan: transfers[3]: row 1 has no 1RECV_B0 before 1B0; want it, as stage 1 "
        "takes 'up.1/addmm/0~grad/mm/0' from stage 3, on row 0"
    )


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (Stated(rows=("5F0",)), "rank 0 has 5F0; there are 1 stages"),
        (Stated(rows=("0F0",)), "rank 0 has 0B0 0 times; want it once"),
        (Stated(most_live=(1, 1)), "schedule.most_live: found 2 entries, wanted 1"),
    ],
)
def test_the_row_of_one_stage_does_all_it_has_to(
    plan: pt.Plan, schedule: Stated, message: str
) -> None:
    plan = replace(plan, microbatches=1)
    replace(plan, schedule=Stated(rows=("0F0 0B0",))).validate()
    assert message in refused(replace(plan, schedule=schedule))


def test_one_stage_hands_nothing_on(plan: pt.Plan) -> None:
    (transfer, *_) = staged().transfers
    said = refused(replace(plan, transfers=(transfer,)))
    assert said == "plan: transfers: found 1, wanted none: there is one stage"
