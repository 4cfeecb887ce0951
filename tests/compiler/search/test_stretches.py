"""What is cut from a stretch is what is cut from the whole program for it."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
from tests.models.dropout import with_dropout
from tests.models.pipelines import PIPELINES
from tests.models.zoo import Built
from torch import nn

import partita as pt
from partita.compiler.capture.capture import capture
from partita.compiler.ir.program import OutputKind, Program, info
from partita.compiler.search.cut_line import Line
from partita.compiler.search.stage_ends import StageProgram
from partita.compiler.search.stage_of import stage_of
from partita.compiler.search.stretches import Stretches
from partita.lowering import in_stages, stage_alone
from partita.microbatched import in_microbatches


class Batched(nn.Module):
    """Keeps statistics in buffers, returns what it is given, has a weight unused."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.unused = nn.Parameter(torch.ones(3))
        self.layers = nn.Sequential(
            nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4)
        )

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss of ``x`` ``[batch, 4]``, and its input."""
        return {"loss": self.layers(x).square().mean(), "given": x}


def _batched() -> Built:
    return Batched(), (torch.randn(8, 4),), {}


MODELS = {**PIPELINES, "batched": _batched, "gpt2": lambda: with_dropout("gpt2")}


@lru_cache
def _program(name: str, count: int) -> Program:
    model, args, kwargs = MODELS[name]()
    captured = capture(model, args, kwargs)
    return in_microbatches(captured, count, pt.default_rules).program


def _same(program: Program, stretches: Stretches, begin: int, end: int) -> None:
    line = stretches.line
    stages = {
        key: (at >= begin) + (at >= end) - (begin == 0)
        for at, key in enumerate(line.forward)
    }
    num = 1 + (begin > 0) + (end < len(line.forward))
    whole = in_stages(program, stage_of(program, stages), num)[begin > 0]
    alone = stage_alone(stretches.between(begin, end))
    assert alone.inputs == whole.inputs
    assert alone.outputs == whole.outputs
    assert alone.in_time == whole.in_time
    assert [*alone.constants] == [*whole.constants]
    assert [info(n) for n in alone.nodes()] == [info(n) for n in whole.nodes()]
    assert StageProgram(alone).structure == StageProgram(whole).structure


@pytest.mark.parametrize(
    ("name", "count"),
    [("diamond", 1), ("hourglass", 2), ("tied", 2), ("batched", 1)],
)
def test_a_stage_is_cut_from_what_matters_to_it(name: str, count: int) -> None:
    program = _program(name, count)
    stretches = Stretches(program, Line.of(program))
    last = len(stretches.line.forward)
    for begin in range(0, last, 5):
        for end in range(begin + 1, last + 1, 8):
            _same(program, stretches, begin, end)
        _same(program, stretches, begin, last)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "batched"])
def test_every_stage_is_cut_from_what_matters_to_it(name: str, count: int) -> None:
    program = _program(name, count)
    stretches = Stretches(program, Line.of(program))
    last = len(stretches.line.forward)
    step = 7 if name == "gpt2" else 1
    for begin in range(0, last, step):
        for end in range(begin + 1, last + 1, step):
            _same(program, stretches, begin, end)


def test_a_stretch_holds_little_more_than_the_stage() -> None:
    program = _program("gpt2", 1)
    stretches = Stretches(program, Line.of(program))
    stretch = stretches.between(20, 24)
    own = sum(stage == 1 for stage in stretch.stage_of.values())
    assert own < len(stretch.stage_of) < 4 * own
    assert len(stretch.stage_of) < sum(1 for _ in program.calls()) / 5


@pytest.mark.parametrize("name", ["chain", "tied", "hourglass"])
def test_parameters_are_at_home_where_their_gradient_leaves(name: str) -> None:
    program = _program(name, 1)
    stretches = Stretches(program, Line.of(program))
    last = len(stretches.line.forward)
    for begin in range(0, last, 3):
        for end in range(begin + 1, last + 1, 3):
            stage = stage_alone(stretches.between(begin, end))
            kinds = {role.kind for role in stage.outputs}
            is_home = any(begin <= home < end for home in stretches.homes)
            assert is_home == (OutputKind.GRADIENT in kinds)
