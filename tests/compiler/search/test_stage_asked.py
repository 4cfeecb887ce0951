"""Stages of which the same is asked are planned alike, under whatever names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import nn

import partita as pt
from partita.compiler.ir.program import Phase, Program, info
from partita.compiler.search.again import patterns_of
from partita.compiler.search.parts import Clock
from partita.compiler.search.pinned import pins_of
from partita.compiler.search.stage_asked import asked_of
from partita.compiler.search.stage_ends import StageProgram
from partita.compiler.search.stage_of import stage_of
from partita.lowering import in_stages
from partita.planner import Planner, Search

PINS = {"layers.*.up.weight": "S(0)", "layers.*/_softmax/*": "S(1)"}


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.softmax(self.up(self.norm(x)), -1))


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().sum()


@lru_cache
def planner() -> Planner:
    options = pt.Options(microbatches=2, pins=PINS)
    return Planner.of(Layers(), (torch.ones(4, 8),), {}, pt.Mesh(tp=2), options)


@lru_cache
def stages() -> tuple[Program, ...]:
    program = planner().captured.program
    number = 0
    of_forward: dict[str, int] = {}
    for node in program.calls():
        if info(node).phase is Phase.FORWARD:
            path = info(node).module.split(".")
            number = max(number, int(path[1]) if len(path) > 1 else number)
            of_forward[info(node).key] = number
    return in_stages(program, stage_of(program, of_forward), 4)


def planner_of(program: Program, recompute: Sequence[str] = ()) -> Planner:
    whole = planner()
    options = replace(
        whole.options,
        pins=pins_of(program, PINS),
        recompute=patterns_of(program, recompute),
    )
    captured = replace(whole.captured, program=program)
    return replace(whole, captured=captured, options=options)


def document(plan: pt.Plan) -> dict[str, Any]:
    return replace(plan, search=replace(plan.search, seconds=0.0)).to_dict()


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
    assert document(carried) == document(planner_of(other, recompute).search())


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
