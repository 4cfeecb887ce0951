"""Stages of which the same is asked are planned alike, under whatever names."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.compiler.search.alike_stages import (
    PINS,
    document,
    planner,
    planner_of,
    stages,
)
from tests.models.searched import searched

from partita.compiler.ir.program import Program
from partita.compiler.search.again import patterns_of
from partita.compiler.search.parts import Clock
from partita.compiler.search.pinned import pins_of
from partita.compiler.search.stage_asked import asked_of
from partita.compiler.search.stage_ends import StageProgram
from partita.one_mesh.search import Search


@pytest.mark.parametrize("recompute", [(), ("layers.*",)], ids=["kept", "made again"])
def test_what_is_decided_for_one_is_the_plan_of_the_other(
    recompute: tuple[str, ...],
) -> None:
    _, one, other, _ = stages()
    search = Search(planner_of(one, recompute), Clock.of(60.0))
    plan = search.run()
    assert plan.expanded, "no op is taken apart"
    assert plan.boxings
    assert any(key.endswith("~again") for key in plan.nodes) == bool(recompute)
    carried = planner_of(other, recompute).decided(search.decided)
    assert document(carried) == document(searched(planner_of(other, recompute)))


def form(program: Program, pins: dict[str, str], again: Sequence[str] = ()) -> object:
    own = pins_of(program, pins), patterns_of(program, again)
    asked = asked_of(program, *own, planner().options.rules)
    return StageProgram(program).structure, asked


def test_stages_in_the_middle_have_one_form() -> None:
    first, one, other, last = stages()
    assert form(one, PINS) == form(other, PINS)
    assert form(one, PINS) != form(first, PINS)
    assert form(one, PINS) != form(last, PINS)
    assert form(one, PINS, ["layers.*"]) == form(other, PINS, ["layers.*"])


def test_what_is_asked_of_one_alone_is_in_its_form() -> None:
    _, one, other, _ = stages()
    pinned = PINS | {"layers.1.down.weight": "B"}
    assert form(one, pinned) != form(other, pinned)
    assert form(other, pinned) == form(other, PINS)
    for again in (["layers.1.*"], ["layers.1.up/*"], ["layers.1.norm* -> *"]):
        assert form(one, PINS, again) != form(other, PINS, again)
    whole = {"parameter:layers.1.up.weight": "S(0)"}
    assert form(one, PINS | whole) == form(other, PINS)
