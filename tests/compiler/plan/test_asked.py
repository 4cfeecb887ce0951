"""A plan tells which of its pins were followed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_plan import UP
from tests.models import zoo

import partita as pt
from partita.compiler.plan.asked import find_asked
from partita.compiler.plan.document import PlanOptions
from partita.compiler.plan.plan import Plan


def asked(plan: Plan, **pins: str) -> dict[str, tuple[str, bool]]:
    """Return by key the pattern and whether it was followed; ``__`` is a dot."""
    named = {name.replace("__", "."): text for name, text in pins.items()}
    found = find_asked(replace(plan, options=PlanOptions(pins=named)))
    return {key: (one.name, one.is_followed) for key, one in found.items()}


def test_pins_by_pattern_and_by_name(plan: Plan) -> None:
    pins = {"*.weight": "on tp", "relu/0": "(S(0), B) ~ 1us", "x": "(S(0), B)"}
    assert asked(plan, **pins) == {
        UP: ("*.weight", True),
        "parameter:down.weight": ("*.weight", True),
        "input:x": ("x", True),
        "relu/0": ("relu/0", False),
    }
    assert asked(plan) == {}


def test_uses_are_followed_where_every_op_takes_them_so(plan: Plan) -> None:
    assert asked(plan, up__weight="use=(B, S(1)) ~ 1us")[UP][1]
    assert not asked(plan, up__weight="use=(B, B) ~ 1us")[UP][1]
    assert not asked(plan, up__weight="on dp; use=(B, S(1)) ~ 1us")[UP][1]


def test_uses_of_views_are_followed_as_the_views_are_made() -> None:
    model, args, _ = zoo.mlp()
    up, down = "parameter:up.weight", "parameter:down.weight"
    pins = {"up.weight": "S(0) use=S(0)", "down.weight": "S(1) use=B"}
    plan = pt.plan(model, *args, mesh=pt.Mesh(tp=2), options=pt.Options(pins=pins))
    found = find_asked(plan)
    assert found[up].is_followed
    assert found[down].is_followed
    assert not asked(plan, up__weight="S(0) use=S(1) ~ 1us")[up][1]
    assert not asked(plan, up__weight="S(0) use=B ~ 1us")[up][1]
    assert not asked(plan, down__weight="S(1) use=S(1) ~ 1us")[down][1]


@pytest.mark.parametrize(
    ("pin", "text"),
    [
        ("(B, S(1))", "pinned to (B, S(1)) by '*.weight'"),
        ("on tp", "pinned to on tp by '*.weight'"),
        (
            "on tp ~ 2us",
            "pinned to on tp by '*.weight', softly, and followed: else 2 us a step",
        ),
        (
            "on dp ~ 2us",
            "not as pinned to on dp by '*.weight', softly: at 2 us that was dearer",
        ),
    ],
)
def test_pin_reads_as_a_reason(plan: Plan, pin: str, text: str) -> None:
    pinned = replace(plan, options=PlanOptions(pins={"*.weight": pin}))
    assert str(find_asked(pinned)[UP]) == text


def test_plan_prints_how_many_soft_pins_hold(plan: Plan) -> None:
    pins = {"up.weight": "on dp ~ 1us", "down.weight": "on tp ~ 1us", "x": "(S(0), B)"}
    lines = str(replace(plan, options=PlanOptions(pins=pins))).splitlines()
    wanted = f"pins    1 of 2 soft ones followed; not {UP}, by 'up.weight'"
    assert wanted in lines
    assert not any(line.startswith("pins") for line in str(plan).splitlines())
