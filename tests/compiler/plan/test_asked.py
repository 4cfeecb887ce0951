"""A plan tells which of its pins were followed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_plan import UP

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
