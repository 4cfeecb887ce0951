"""Four equal layers, each a stage, and how they are planned, for tests of such."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import nn

import partita as pt
from partita.compiler.ir.program import Phase, Program, info
from partita.compiler.search.again import patterns_of
from partita.compiler.search.pinned import pins_of
from partita.compiler.search.stage_of import stage_of
from partita.lowering import in_stages
from partita.one_mesh.planner import Planner

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
