"""A program of one stage: compiled as a whole unless that fails."""

from __future__ import annotations

import copy
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._inductor import config as inductor
from torch._inductor.async_compile import AsyncCompile
from torch.distributed.tensor import DTensor
from torch.nn import functional

import partita as pt
from partita.compiler.errors import CompilationFailed
from partita.runtime import alone
from partita.runtime import compile_together as together
from partita.runtime.launch import launch

WIDTH, HIDDEN, BATCH = 8, 16, 4


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Return the loss and an output."""
        out = self.down(torch.tanh(self.up(x)))
        return {"loss": out.square().mean(), "out": out}


def check_trains(model: Model, x: Tensor, **options: Any) -> None:
    """Check a step's gradients, and what the forward alone makes."""
    asked = pt.Options(fuse=True, **options)
    plan = pt.plan(model, x, mesh=pt.Mesh(dp=1), options=asked)
    program = pt.compile(copy.deepcopy(model), plan, device="cpu")
    found = program.step(x)
    loss = model(x)["loss"]
    loss.backward()
    torch.testing.assert_close(found, loss.detach())
    for one, other in zip(program.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    torch.testing.assert_close(program(x)["out"], model(x)["out"])


@pytest.mark.parametrize("microbatches", [1, 2])
def test_what_cannot_be_compiled_as_a_whole_runs_in_regions(
    monkeypatch: pytest.MonkeyPatch, microbatches: int
) -> None:
    def fail(chains: object) -> None:
        raise CompilationFailed("there is no compiler")

    monkeypatch.setattr(alone, "compile_together", fail)
    with pytest.warns(UserWarning, match="runs in regions: there is no compiler"):
        check_trains(Model(), torch.randn(BATCH, WIDTH), microbatches=microbatches)
    plan = pt.plan(Model(), torch.randn(BATCH, WIDTH), mesh=pt.Mesh(dp=1))
    with pytest.raises(CompilationFailed):
        pt.compile(Model(), plan, device="cpu", compilation="whole")


def test_it_is_compiled_as_a_whole_unless_asked_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[object] = []
    original = alone.compile_together

    def count(chains: Any) -> Any:
        compiled.append(chains)
        return original(chains)

    monkeypatch.setattr(alone, "compile_together", count)
    check_trains(Model(), torch.randn(BATCH, WIDTH))
    assert len(compiled) == 2  # the step, and the forward alone


COLUMN_AND_ROW = {"up.weight": "S(0)", "up.bias": "S(0)", "down.weight": "S(1)"}


Values = dict[str, Tensor]


def train_where_one_cannot(do: str) -> tuple[Values, Values]:
    """Return the loss and parameters after a step, and those of the model alone."""
    torch.manual_seed(0)
    model, x = Model(), torch.randn(BATCH, WIDTH)
    asked = pt.Options(fuse=True, pins={**COLUMN_AND_ROW, "x": "B"})
    plan = pt.plan(model, x, mesh=pt.Mesh(tp=2), options=asked)
    original = vars(together)[do]

    def done(*args: Any) -> Any:
        if dist.get_rank() == 1:
            raise RuntimeError("it cannot be done")
        return original(*args)

    with (
        patch.object(together, do, done),
        pytest.warns(UserWarning, match="runs in regions: rank 1 cannot compile"),
    ):
        program = pt.compile(copy.deepcopy(model), plan, device="cpu")
    found = {"loss": program.step(x)}
    wanted = {"loss": model(x)["loss"]}
    wanted["loss"].backward()
    for trained in (program, model):
        torch.optim.SGD(trained.parameters(), lr=1.0).step()
    for name, value in program.state_dict().items():
        assert isinstance(value, DTensor)
        found[name] = value.full_tensor()
    wanted["loss"] = wanted["loss"].detach()
    return found, wanted | model.state_dict()


@pytest.mark.dist
@pytest.mark.parametrize("do", ["flatten", "compile_graph"])
def test_where_one_rank_cannot_compile_all_run_in_regions(do: str) -> None:
    for found, wanted in launch(f"{__file__}:train_where_one_cannot", 2, (do,)):
        torch.testing.assert_close(found, wanted)


class Residual(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(functional.rms_norm(x, (WIDTH,)))
        return x.square().mean()


def num_kernels(depth: int) -> int:
    """Return how many unlike kernels a step of so many layers is compiled to."""
    model, x = Residual(depth), torch.randn(BATCH, WIDTH)
    plan = pt.plan(model, x, mesh=pt.Mesh(dp=1), options=pt.Options(fuse=True))
    original, sources = AsyncCompile.cpp_pybinding, set[str]()

    def compiled(own: AsyncCompile, types: list[str], source: str, **asked: Any) -> Any:
        sources.add(source)
        return original(own, types, source, **asked)

    with (
        patch.object(AsyncCompile, "cpp_pybinding", compiled),
        inductor.patch(fx_graph_cache=False),
    ):
        pt.compile(model, plan, device="cpu")
    return len(sources)


def test_layers_are_compiled_once() -> None:
    """Where sums of many layers are read anew, the fifth has kernels of its own."""
    assert num_kernels(5) == num_kernels(4)
