"""A training script with a program in the place of its model does what it did."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import OneCycleLR

import partita as pt
from partita.compiler.errors import BadOptions
from partita.runtime.launch import launch
from partita.runtime.program import ParallelProgram

pytestmark = pytest.mark.dist

Named = list[tuple[str, nn.Parameter]]
Step = Callable[[int], float]
Left = dict[str, tuple[list[float], dict[str, torch.Tensor]]]
MESHES = {"tp=2": {"*.weight": "on tp"}, "dp=2": {"*": "storage=(S(0),); use=(B,)"}}


class Model(nn.Module):
    """Two layers in double precision."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 4)
        self.double()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the loss of ``x`` ``[4, 8]`` and ``y`` ``[4, 4]``."""
        return F.mse_loss(self.down(self.up(x).tanh()), y)


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(2, 4, 8, dtype=torch.float64, generator=generator)
    return x, y[:, :4]


def in_groups(named: Named) -> list[dict[str, Any]]:
    weights = [p for n, p in named if n.endswith("weight")]
    others = [p for n, p in named if not n.endswith("weight")]
    return [
        {"params": weights, "weight_decay": 0.3},
        {"params": others, "weight_decay": 0.0},
    ]


def clipped_by_group(named: Named, step: Step) -> list[float]:
    """Gradients of two steps, clipped group by group; a schedule of lr and momentum."""
    optimizer = torch.optim.SGD(in_groups(named), lr=0.1, momentum=0.9)
    schedule = OneCycleLR(optimizer, max_lr=0.3, total_steps=4)
    told: list[float] = []
    for number in range(3):
        told += [step(number), step(number + 10)]
        for group in optimizer.param_groups:
            told.append(clip_grad_norm_(group["params"], 0.1).item())
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return told


def changed_by_hand(named: Named, step: Step) -> list[float]:
    """A fused optimizer; its lr set, a layer frozen, all decayed between steps."""
    optimizer: Any = torch.optim.AdamW(in_groups(named), lr=0.1, fused=True)
    told: list[float] = []
    for number in range(3):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (number + 1)
        for name, parameter in named:
            parameter.requires_grad_(number == 0 or not name.startswith("up"))
        told.append(optimizer.step(lambda number=number: step(number)))
        optimizer.zero_grad(set_to_none=False)
        with torch.no_grad():
            for _, parameter in named:
                parameter.mul_(0.9)
    return told


SCRIPTS = (clipped_by_group, changed_by_hand)


def run_all(make: Callable[[], Any], step_of: Callable[[Any], Step]) -> Left:
    found: Left = {}
    for script in SCRIPTS:
        model = make()
        told = script(list(model.named_parameters()), step_of(model))
        found[script.__name__] = told, whole(model.state_dict())
    return found


def whole(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: getattr(x, "full_tensor", x.clone)() for name, x in state.items()}


def on_ranks(document: dict[str, Any], folder: str) -> tuple[Left, list[str]]:
    plan = pt.Plan.from_dict(document)

    def make() -> ParallelProgram:
        return pt.compile(Model(), plan, device="cpu")

    found = run_all(make, lambda p: lambda number: p.step(*batch(number)).item())
    return found, messages_of_another_rank(make, folder)


def messages_of_another_rank(
    make: Callable[[], ParallelProgram], folder: str
) -> list[str]:
    """Return what is said where all ranks load what the first one saved by itself."""
    program = make()
    optimizer = torch.optim.AdamW(program.parameters())
    program.step(*batch(0))
    optimizer.step()
    saved = {"model": program.state_dict(), "optimizer": optimizer.state_dict()}
    if torch.distributed.get_rank() == 0:
        torch.save(saved, f"{folder}/saved.pt")
    torch.distributed.barrier()
    loaded = torch.load(f"{folder}/saved.pt", weights_only=False)
    optimizer.load_state_dict(loaded["optimizer"])
    again = torch.optim.AdamW(program.parameters())
    again.load_state_dict(loaded["optimizer"])
    tries: Iterable[Callable[[], Any]] = (
        lambda: program.load_state_dict(loaded["model"]),
        again.step,
    )
    said: list[str] = []
    for one in tries:
        try:
            one()
        except BadOptions as error:
            said.append(str(error))
    return said


@pytest.mark.parametrize("mesh", MESHES)
def test_it_does_what_it_did(mesh: str, tmp_path: Path) -> None:
    def alone(model: Model) -> Step:
        def step(number: int) -> float:
            with torch.enable_grad():
                loss = model(*batch(number))
                loss.backward()
            return loss.item()

        return step

    want = run_all(Model, alone)
    options = pt.Options(pins=MESHES[mesh])
    plan = pt.plan(Model(), *batch(0), mesh=mesh, options=options)
    ranks = launch(on_ranks, 2, (plan.to_dict(), str(tmp_path)), timeout_s=100.0)
    for found, _ in ranks:
        torch.testing.assert_close(found, want, rtol=1e-10, atol=1e-12)
    told = [[message.split(" ")[0] for message in messages] for _, messages in ranks]
    assert told == [["state"], ["state", "optimizer:"]]
