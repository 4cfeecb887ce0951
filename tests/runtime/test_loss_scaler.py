"""A loss is scaled as torch.amp.GradScaler scales it, on all ranks alike."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from tests.models.zoo import mlp
from torch import Tensor, nn

import partita as pt
from partita.runtime.gradients import local_gradient
from partita.runtime.launch import launch
from partita.runtime.program import ParallelProgram

NUM_STEPS = 9
SETTINGS: dict[str, Any] = {"init_scale": 2.0**24, "growth_interval": 2}
MESHES = ["dp=2", pytest.param("pp=2,dp=1", marks=pytest.mark.slow)]


def train_on_rank(document: Any) -> dict[str, list[Any]]:
    model, args, _ = mlp()
    program = pt.compile(model, pt.Plan.from_dict(document), device="cpu")
    optimizer = torch.optim.SGD(program.parameters(), lr=0.05)
    scaler = pt.LossScaler(program, **SETTINGS)
    found: dict[str, list[Any]] = {"losses": [], "scales": [], "norms": []}
    for _ in range(NUM_STEPS):
        found["scales"].append(scaler.scale)
        found["losses"].append(float(program.step(*args)))
        is_finite = scaler.unscale_()
        norm = program.clip_grad_norm_(1.0)
        found["norms"].append(float(norm) if is_finite else math.inf)
        assert scaler.step(optimizer) == is_finite
        optimizer.zero_grad()
    return found


def train_alone() -> dict[str, list[Any]]:
    built, args, _ = mlp()
    model = copy.deepcopy(built)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", **SETTINGS)
    found: dict[str, list[Any]] = {"losses": [], "scales": [], "norms": []}
    for _ in range(NUM_STEPS):
        found["scales"].append(scaler.get_scale())
        with torch.autocast("cpu", torch.float16):
            loss = model(*args)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        found["norms"].append(float(norm) if norm.isfinite() else math.inf)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        found["losses"].append(float(loss.detach()))
    return found


@pytest.mark.dist
@pytest.mark.parametrize("mesh", MESHES)
def test_it_trains_as_the_scaler_of_torch_does(mesh: str) -> None:
    model, args, _ = mlp()
    options = pt.Options(precision="float16", hardware="cpu-gloo-free")
    plan = pt.plan(model, *args, mesh=mesh, options=options)
    alone = train_alone()
    assert len(set(alone["scales"])) > 3  # it falls, and grows
    assert math.inf in alone["norms"]
    for found in launch(f"{__file__}:train_on_rank", 2, (plan.to_dict(),), 110.0):
        assert found["scales"] == alone["scales"]
        assert found["losses"] == pytest.approx(alone["losses"], rel=1e-3)
        assert found["norms"] == pytest.approx(alone["norms"], rel=1e-2)


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).sum()


FINITE = torch.ones(2, 4)
INFINITE = torch.ones(2, 4).index_fill(1, torch.tensor([3]), math.inf)


def update_on_rank(document: Any) -> tuple[list[bool], list[float], dict[str, float]]:
    """Make an update whose gradient is infinite on one rank, then one that is not."""
    program = pt.compile(Weighted(), pt.Plan.from_dict(document), device="cpu")
    optimizer = torch.optim.SGD(program.parameters(), lr=0.5)
    scaler = pt.LossScaler(program, init_scale=8.0, growth_interval=1)
    updated: list[bool] = []
    for batch in (INFINITE, FINITE):
        program.step(batch)
        own = all(
            bool(local_gradient(p.grad).isfinite().all())
            for p in program.parameters()
            if p.grad is not None
        )
        updated += [own, scaler.step(optimizer)]
        optimizer.zero_grad()
    whole = program.state_dict()["weight"].full_tensor()  # type: ignore[attr-defined]
    state = scaler.state_dict()
    other = pt.LossScaler(program)
    other.load_state_dict(state)
    assert other.state_dict() == state
    return updated, whole.tolist(), state


@pytest.mark.dist
def test_no_rank_updates_where_one_has_an_overflow() -> None:
    pins = {"weight": "(S(0))"}
    plan = pt.plan(Weighted(), FINITE, mesh="ranks=2", options=pt.Options(pins=pins))
    found = launch(f"{__file__}:update_on_rank", 2, (plan.to_dict(),), 110.0)
    assert [updated for updated, _, _ in found] == [
        [True, False, True, True],
        [False, False, True, True],
    ]
    for _, weight, state in found:
        assert weight == [0.0] * 4  # 1 - 0.5 * 2, once
        assert state == {"scale": 8.0, "num_updates": 0}


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.ones(4))
        self.second = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.first * self.second).sum()


def alone(model: nn.Module) -> ParallelProgram:
    plan = pt.plan(model, FINITE, mesh="ranks=1")
    return pt.compile(model, plan, device="cpu")


def test_several_optimizers_are_stepped_by_gradients_that_are_unscaled_once() -> None:
    program = alone(Pair())
    parameters = dict(program.named_parameters())
    optimizers = [torch.optim.SGD([p], lr=0.25) for p in parameters.values()]
    scaler = pt.LossScaler(program, init_scale=1024.0, growth_interval=2)
    scales: list[float] = []
    for _ in range(2):
        program.step(FINITE)
        assert [scaler.step(optimizer) for optimizer in optimizers] == [True, True]
        program.zero_grad()
        scales.append(scaler.scale)
    assert scales == [1024.0, 2048.0]
    for parameter in parameters.values():
        assert parameter.tolist() == [0.25] * 4  # 1 - 0.25 * 2 - 0.25 * 2 * 0.5
    program.step(INFINITE)
    assert [scaler.step(optimizer) for optimizer in optimizers] == [False, False]
    assert scaler.scale == 1024.0


def test_gradients_of_another_step_are_unscaled_anew() -> None:
    program = alone(Weighted())
    scaler = pt.LossScaler(program, init_scale=8.0)
    (weight,) = program.parameters()
    for batch, is_finite in ((INFINITE, False), (FINITE, True)):
        program.zero_grad()
        program.step(batch)
        assert [scaler.unscale_(), scaler.unscale_()] == [is_finite] * 2
    assert weight.grad is not None
    assert weight.grad.tolist() == [2.0] * 4


def test_a_scaler_that_has_gone_back_unscales_a_step_that_is_run_again() -> None:
    program = alone(Weighted())
    scaler = pt.LossScaler(program, init_scale=8.0)
    (weight,) = program.parameters()
    state = scaler.state_dict()
    for _ in range(2):
        program.num_steps = 0
        scaler.load_state_dict(state)
        program.zero_grad()
        program.step(FINITE)
        scaler.unscale_()
    assert weight.grad is not None
    assert weight.grad.tolist() == [2.0] * 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"growth_factor": 1.0},
            "init_scale is 65536.0, growth_factor 1.0; want a number above 0 and one "
            "above 1",
        ),
        (
            {"backoff_factor": 2.0},
            "backoff_factor is 2.0, growth_interval 2000; want a number between 0 and "
            "1 and at least 1",
        ),
    ],
)
def test_factors_that_do_nothing_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    program: Any = None  # not looked at
    with pytest.raises(pt.PartitaError) as caught:
        pt.LossScaler(program, **settings)
    assert str(caught.value) == message
