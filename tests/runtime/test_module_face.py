"""What a script calls on a model, it may call on a program, or is told the way."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from local_programs import BATCH, OUT, WIDTH, Mlp, batch, local_mlp
from torch import nn

from partita.compiler.errors import BadOptions
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.tensor_type import TensorType
from partita.runtime.batch import BatchSpec
from partita.runtime.groups import bind
from partita.runtime.program import ParallelProgram
from partita.runtime.share import StagePrograms


def flatten(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {**dict(zip(("x", "target"), args, strict=False)), **kwargs}


@pytest.fixture
def program() -> ParallelProgram:
    """A program of one rank, of a model in training mode on the CPU."""
    mesh = Mesh(dp=1, tp=1)
    groups = bind(mesh, "cpu")
    types = {"x": (BATCH, WIDTH), "target": (BATCH, OUT)}
    leaves = {name: TensorType(shape, torch.float64) for name, shape in types.items()}
    programs = StagePrograms(local_mlp(mesh, (0, 0)), groups)
    return ParallelProgram({0: programs}, Mlp(), BatchSpec(flatten, leaves))


def test_what_it_is_already_is_itself(program: ParallelProgram) -> None:
    assert program.train() is program
    assert program.to("cpu", torch.float64, non_blocking=True) is program
    assert program.cpu().double().to(torch.ones(1, dtype=torch.float64)) is program
    assert [len(b.shape) for b in program.buffers()] == [0, 1]
    assert repr(program) == (
        "<ParallelProgram of Mlp on mesh dp=1,tp=1: rank 0 of 1, 4 parameters, 912 B "
        "of them here, 0 steps done>"
    )


REFUSED: dict[str, Callable[[Any], Any]] = {
    "eval(): the model was in training mode when it was planned": lambda p: p.eval(),
    "to: the program is on cpu, not cuda:1; want": lambda p: p.to(1),
    "to: 'scale' is torch.float64 in the plan, not torch.float16": (lambda p: p.half()),
    "a program cannot be copied or pickled: ": copy.deepcopy,
    "a program cannot be copied or pickled: it": pickle.dumps,
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_it_is_not_is_said(program: ParallelProgram, message: str) -> None:
    with pytest.raises(BadOptions) as refused:
        REFUSED[message](program)
    assert str(refused.value).startswith(message)


def test_it_has_no_modules(program: ParallelProgram) -> None:
    assert not hasattr(program, "modules")
    with pytest.raises(AttributeError, match=r"a program has no 'up': it is the model"):
        _ = getattr(program, "up")  # noqa: B009


def test_gradients_are_let_go_of(program: ParallelProgram) -> None:
    program.step(*batch())
    program.zero_grad(set_to_none=False)
    gradients = [p.grad for p in program.parameters() if p.requires_grad]
    assert all(g is not None and not g.any() for g in gradients)
    program.zero_grad()
    assert all(p.grad is None for p in program.parameters())


def test_a_parameter_may_be_frozen_and_not_be_thawed(program: ParallelProgram) -> None:
    parameters = dict(program.named_parameters())
    parameters["up.bias"].requires_grad_(False)
    program.step(*batch())
    got = {name for name, p in parameters.items() if p.grad is not None}
    assert got == {"up.weight", "down.weight"}
    parameters["scale"].requires_grad_(True)
    with pytest.raises(BadOptions, match=r"^parameter 'scale' was frozen when the"):
        program.step(*batch())


def test_what_it_returns_has_no_backward(program: ParallelProgram) -> None:
    with pytest.raises(BadOptions, match="backward"):
        program.step(*batch()).backward()
    with pytest.raises(BadOptions, match="backward"):
        nn.functional.mse_loss(program(*batch())["y"], batch()[1]).backward()
    with torch.no_grad():
        assert type(program(*batch())["y"]) is torch.Tensor


@pytest.mark.filterwarnings("ignore")
def test_it_runs_as_it_is_under_torch_compile(program: ParallelProgram) -> None:
    want = program.step(*batch())
    assert torch.compile(program.step)(*batch()) == want
