"""The program of one microbatch: parts, sums over them, and what is refused."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest
import torch
from tests.models.dropout import with_dropout
from torch import nn

import partita as pt
from partita.compiler.capture.capture import Captured, capture
from partita.compiler.capture.inputs import name_leaves
from partita.compiler.ir.program import InputKind, OutputKind, Program, info, op_name
from partita.compiler.ir.sbp import Partial, Split
from partita.compiler.rules.table import default_rules
from partita.compiler.search.in_time import InTime
from partita.passes.base import run_sequence
from partita.passes.split_in_time import SplitInTime
from partita.runtime.microbatches import joined

Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


def captured(built: Built) -> Captured:
    return capture(built[0], built[1], built[2])


@cache
def dropping(name: str) -> tuple[Built, Captured]:
    built = with_dropout(name)
    return built, captured(built)


def split(program: Program, count: int) -> Program:
    chosen = InTime(program, default_rules).choose(count)
    return run_sequence(program, (SplitInTime(count, chosen, default_rules),))


def types_of(program: Program) -> dict[str, str]:
    return {
        info(node).key: ", ".join(map(str, info(node).types))
        for node in program.nodes()
    }


def test_inputs_are_cut_and_gradients_add_up() -> None:
    whole = dropping("mlp")[1].program
    part = split(whole, 2)
    before, after = types_of(whole), types_of(part)
    assert before["input:x"] == "f32[8, 32]"
    assert after["input:x"] == "f32[4, 32]"
    assert after["parameter:up.weight"] == before["parameter:up.weight"]
    assert after["down/addmm/0"] == "f32[4, 32]"
    assert list(after) == list(before)
    assert part.in_time.count == 2
    assert set(part.in_time.joins) == {Partial()}
    assert all(info(node).signature is None for node in part.nodes())


def test_a_mean_is_divided_by_all_of_the_batch() -> None:
    part = split(dropping("mlp")[1].program, 2)
    mean = next(n for n in part.calls() if op_name(n) == "aten.div.Scalar")
    assert mean.args[1] == 8 * 32


def test_what_counts_the_tokens_sees_all_of_them() -> None:
    part = split(dropping("gpt2")[1].program, 2)
    types = types_of(part)
    assert types["input:input_ids"] == "i64[2, 16]"
    assert types["input:labels"] == "i64[4, 16]"
    assert types["view/1#0~micro.0"] == "i64[32]"
    assert types["microbatch:micro"] == "i64[]"
    joins = dict(zip(part.outputs, part.in_time.joins, strict=True))
    (logits,) = [j for r, j in joins.items() if r.kind is OutputKind.OUTPUT]
    assert logits == Split(0)


def _values(built: Built, program: Program) -> dict[Any, torch.Tensor]:
    model, args, kwargs = built
    named = [
        (InputKind.PARAMETER, model.named_parameters()),
        (InputKind.BUFFER, model.named_buffers()),
        (InputKind.INPUT, name_leaves(model, args, kwargs).items()),
        (InputKind.CONSTANT, program.constants.items()),
    ]
    found = {(kind, name): value for kind, pairs in named for name, value in pairs}
    found[InputKind.LOSS_SCALE, "loss_scale"] = torch.ones(())
    found[InputKind.SEED, "seed"] = torch.tensor(7)
    return found


def _run(program: Program, values: dict[Any, torch.Tensor]) -> tuple[Any, ...]:
    program.graph_module.recompile()
    with torch.no_grad():
        return program.graph_module(*(values[r.kind, r.name] for r in program.inputs))


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", ["mlp", "gpt2", "encoder", "opt"])
def test_parts_make_up_the_whole_dropout_on(name: str, count: int) -> None:
    built, known = dropping(name)
    whole = known.program
    part = split(whole, count)
    values = _values(built, whole)
    runs: list[tuple[Any, ...]] = []
    for number in range(count):
        own = values | {(InputKind.MICROBATCH, "micro"): torch.tensor(number)}
        for node, role in part.placeholders():
            (type_,) = info(node).types
            key = role.kind, role.name
            if role.kind is InputKind.INPUT and type_ is not None:
                size = type_.shape[0]
                if own[key].shape[0] != size:
                    own[key] = own[key].narrow(0, number * size, size)
        runs.append(_run(part, own))
    for position, wanted in enumerate(_run(whole, values)):
        found = joined([r[position] for r in runs], part.in_time.joins[position])
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


class Masked(nn.Module):
    """Adds a mask without a batch, of as many rows as the batch has."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the loss of ``x`` ``[batch, 4, 4]``, ``mask`` ``[4, 4]``."""
        return (self.layer(x) * mask).square().mean()


def test_an_input_without_a_batch_is_whole() -> None:
    inputs = torch.randn(4, 4, 4), torch.randn(4, 4)
    part = split(captured((Masked(), inputs, {})).program, 2)
    types = types_of(part)
    assert types["input:x"] == "f32[2, 4, 4]"
    assert types["input:mask"] == "f32[4, 4]"


class Weighted(nn.Module):
    """Weighs what it makes of a batch, by weights that depend on all of it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)

    def forward(
        self, x: torch.Tensor, w: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """Return the loss of ``x`` ``[batch, 4]``, with weights ``[batch]``."""
        weights = w / w.sum() + v / v.sum()
        return (self.layer(x).square().mean(1) * weights).sum()


def test_slices_of_one_size_share_their_rows() -> None:
    inputs = torch.randn(8, 4), torch.rand(8), torch.rand(8)
    part = split(captured((Weighted(), inputs, {})).program, 2)
    types = types_of(part)
    assert types["input:w#0~micro.0"] == types["input:v#0~micro.0"] == "f32[4]"
    ops = Counter(op_name(node) for node in part.calls())
    assert ops["aten.index_select.default"] == 2
    assert ops["aten.arange.default"] == 1


class Counting(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the loss of ``x`` ``[batch, 4]``."""
        self.calls += 1
        return self.layer(x).square().mean()


def test_a_buffer_is_written_as_by_the_whole_batch() -> None:
    model, x = Counting(), torch.randn(8, 4)
    options = pt.Options(microbatches=4)
    plan = pt.plan(model, x, mesh="tp=2", options=options)
    report = pt.verify(model, x, plan=plan)
    assert report.ok, report
    assert "buffer:calls" in report.errors


class Penalized(nn.Module):
    """Several losses: one weighted by what is learned, a penalty, and a number."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.full((), 0.5))
        self.unused = nn.Parameter(torch.full((3,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the loss of ``x`` ``[batch, 4]``."""
        loss = self.last(self.first(x).tanh()).square().mean()
        loss = torch.exp(-self.weight) * loss + self.weight
        penalty = torch.linalg.vector_norm(self.last.weight) + self.unused.sin().sum()
        return 1 - (loss + 0.25 + penalty)


@pytest.mark.parametrize("mesh", ["tp=2", "pp=2"])
def test_penalties_and_numbers_are_added_in_equal_shares(mesh: str) -> None:
    model, x = Penalized(), torch.randn(8, 4)
    schedule = "1f1b" if mesh == "pp=2" else "auto"
    options = pt.Options(microbatches=4, schedule=schedule)
    plan = pt.plan(model, x, mesh=mesh, options=options)
    report = pt.verify(model, x, plan=plan)
    assert report.ok, report
    assert plan.microbatches == 4
