"""Plans elsewhere: on their own machine nothing changes, on others what is known."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from tests.compiler.simulate.conftest import chain

import partita as pt
from partita.compiler.hardware.profile import Hardware, load_hardware
from partita.compiler.plan.plan import Plan
from partita.compiler.rules.table import default_rules
from partita.compiler.simulate.plan import simulate_step
from partita.compiler.simulate.reprice import reprice


def seconds_of(plan: Plan) -> dict[str, float]:
    """Return all seconds of a plan, by what they are of."""
    return {
        **{key: node.seconds for key, node in plan.nodes.items()},
        **{
            f"{boxing.key} {number}": step.seconds
            for boxing in plan.boxings
            for number, step in enumerate(boxing.lowering)
        },
        **{f"{t.kind} {t.name} {t.receiver}": t.seconds for t in plan.transfers},
    }


def slower(hardware: Hardware) -> Hardware:
    """Return a machine on which all takes twice as long."""

    def doubled(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            known = cast("dict[str, Any]", value)
            return {
                k: doubled(v, key if key.endswith("per_s") else k)
                for k, v in known.items()
            }
        if isinstance(value, list):
            return [doubled(item) for item in cast("list[Any]", value)]
        if isinstance(value, float):
            faster = 0.5 if key.endswith("per_s") else 1
            return value * (2 if key.endswith("_s") and faster == 1 else faster)
        return value

    return Hardware.from_dict({**doubled(hardware.to_dict()), "name": "slower"})


def test_on_its_own_machine_a_plan_takes_what_it_says(plan: Plan) -> None:
    found = reprice(plan, load_hardware(plan.hardware))
    assert found.estimated == ()
    assert seconds_of(found.plan) == pytest.approx(seconds_of(plan), rel=1e-9, abs=0)
    step = simulate_step(found.plan)
    assert step.seconds == pytest.approx(plan.predicted.seconds, rel=1e-9)


def test_on_a_machine_half_as_fast_all_takes_twice_as_long(plan: Plan) -> None:
    found = reprice(plan, slower(load_hardware(plan.hardware)))
    twice = {key: 2 * seconds for key, seconds in seconds_of(plan).items()}
    assert seconds_of(found.plan) == pytest.approx(twice, rel=1e-9, abs=0)
    step = simulate_step(found.plan)
    assert step.seconds == pytest.approx(2 * plan.predicted.seconds, rel=1e-9)


def test_elsewhere_it_takes_what_a_plan_made_there_does() -> None:
    # Where the choices are pinned, both machines have the same plan.
    pins = {"layers.*.weight": "B", "layers.*.bias": "B", "x": "S(0)", "target": "S(0)"}
    here = chain("dp=2", microbatches=2, pins=pins)
    there = chain("dp=2", microbatches=2, pins=pins, hardware="h100-dgx")
    signatures = [
        {key: node.signature for key, node in plan.nodes.items()}
        for plan in (here, there)
    ]
    assert signatures[0] == signatures[1]
    found = reprice(here, load_hardware("h100-dgx"))
    assert found.plan.hardware["name"] == "h100-dgx"
    assert seconds_of(found.plan) == pytest.approx(seconds_of(there), rel=1e-9)
    step = simulate_step(found.plan)
    assert step.seconds == pytest.approx(there.predicted.seconds, rel=1e-9)


def test_calls_that_the_plan_tells_too_little_of_are_scaled_and_named() -> None:
    # By a row of the user's own a tanh is as dear as it likes.
    row = pt.Rule("aten.tanh.default", "* -> *", flops="1000000 *0")
    plan = pt.plan(
        torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()),
        torch.randn(4, 8),
        mesh="dp=1",
        options=pt.Options(
            rules=default_rules.with_(row), loss=lambda out: out.square().sum()
        ),
    )
    here = load_hardware(plan.hardware)
    assert reprice(plan, here).estimated == ("1/tanh/0",)
    assert seconds_of(reprice(plan, here).plan) == seconds_of(plan)
    found = reprice(plan, slower(here)).plan.nodes["1/tanh/0"]
    assert found.seconds == pytest.approx(2 * plan.nodes["1/tanh/0"].seconds)
