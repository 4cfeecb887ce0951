"""What a compiled program is given, and what its calls draw."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.models import zoo
from torch import nn

import partita as pt
from partita.compiler.capture.capture import Captured
from partita.compiler.errors import BadPlan
from partita.compiler.rules.rule import RuleSet
from partita.lowering import Lowered
from partita.runtime.launch import launch


class Dropped(nn.Module):
    """Drops half of what a layer makes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a number for ``x`` ``[4, 4]``."""
        return nn.functional.dropout(self.layer(x), 0.5).square().mean()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.linspace(-1, 1, 16).view(4, 4)


def test_the_name_of_a_file_is_no_plan() -> None:
    plan: Any = "plan.json"
    with pytest.raises(pt.PartitaError) as refused:
        pt.compile(Dropped(), plan)
    assert str(refused.value) == (
        "compile: found 'plan.json' for a plan; want what pt.plan or pt.Plan.load "
        "returned"
    )


def test_calls_draw_other_numbers_where_there_is_no_loss(x: torch.Tensor) -> None:
    model = Dropped()
    for train, num_calls in ((False, 3), (True, 0)):
        plan = pt.plan(model, x, mesh="dp=1", options=pt.Options(train=train))
        program = pt.compile(model, plan, device="cpu")
        found = [program(x).item() for _ in range(3)]
        assert len(set(found)) == max(1, num_calls)
        assert program.num_steps == num_calls
        program.num_steps = 0
        assert program(x).item() == found[0]


def test_the_order_of_a_norm_may_be_a_text_as_for_torch(x: torch.Tensor) -> None:
    model = Dropped()
    program = pt.compile(model, pt.plan(model, x, mesh="dp=1"), device="cpu")
    program.step(x)
    largest = max(
        p.grad.abs().max() for p in program.parameters() if p.grad is not None
    )
    assert program.clip_grad_norm_(1.0, "inf") == largest


def compiled(plan: pt.Plan, failing: int) -> tuple[list[int], str]:
    """Return the stages that are lowered on this rank, and why it has no program.

    Carrying out stage ``failing`` fails.
    """
    lowered: list[int] = []
    make = Lowered.of

    def of(captured: Captured, part: pt.Plan, rules: RuleSet) -> Lowered:
        (number,) = {node.stage for node in part.nodes.values()}
        lowered.append(number)
        if number == failing:
            raise BadPlan(f"stage {number} cannot be")
        return make(captured, part, rules)

    model, _, _ = zoo.mlp()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lowered, "of", of)
        try:
            pt.compile(model, plan)
        except BadPlan as error:
            return lowered, str(error)
    return lowered, ""


@pytest.mark.dist
def test_a_rank_carries_out_its_own_stages_alone_and_hears_of_the_others() -> None:
    model, args, _ = zoo.mlp()
    plan = pt.plan(model, *args, mesh="pp=2", options=pt.Options(microbatches=2))
    assert launch(compiled, 2, (plan, -1)) == [([0], ""), ([1], "")]
    reason = "stage 1 cannot be"
    assert launch(compiled, 2, (plan, 1)) == [([0], reason), ([1], reason)]
