"""Random plans make things again, and so differ in more than placements."""

from __future__ import annotations

import pytest
from tests.compiler.search.hand_made import planner
from tests.models import zoo
from tests.models.more_models import MORE

from partita.compiler.ir.mesh import Mesh


def test_random_plans_make_nodes_and_boxings_again() -> None:
    model, args, _ = zoo.mlp()
    found = planner(model, *args, mesh=Mesh(dp=2, tp=2))
    plans = [found.random(seed) for seed in range(12)]
    for plan in plans:
        plan.validate()
    numbers = [len(plan.recompute) for plan in plans]
    assert numbers.count(0) >= 2
    assert max(numbers) >= 4
    keys = {key for plan in plans for key in plan.recompute}
    assert {" -> " in key for key in keys} == {True, False}
    assert found.random(3) == plans[3]


@pytest.mark.slow
def test_gradients_follow_parameters_that_are_held_so_that_they_can() -> None:
    model, args, kwargs = MORE["unet"]()
    found = planner(model, *args, mesh=Mesh(dp=2, cp=2, tp=2), **kwargs)
    found.random(0).validate()
