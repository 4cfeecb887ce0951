"""Ranks that make unlike models are told, each of them."""

from __future__ import annotations

import os

import pytest
import torch

import partita as pt
from partita.compiler.errors import BadOptions
from partita.runtime.first_values import sum_of_bits
from partita.runtime.launch import launch


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool,
        torch.int64,
        torch.float8_e4m3fn,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
    ],
)
def test_other_values_have_another_sum(dtype: torch.dtype) -> None:
    zeros, ones = torch.zeros(4, 2).to(dtype), torch.ones(2, 4).to(dtype).t()
    nothing, something = int(sum_of_bits(zeros)), int(sum_of_bits(ones))
    assert nothing == sum_of_bits(torch.zeros(()).to(dtype)) == 0
    assert something == sum_of_bits(ones.contiguous()) != 0
    strided = torch.ones(8, 2).to(dtype)[:, :1]
    assert something == sum_of_bits(strided) == sum_of_bits(strided[:, 0])
    behind = torch.ones(9).to(dtype)[1:]
    assert something == sum_of_bits(behind)
    assert sum_of_bits(behind[1:]) != something
    assert sum_of_bits(ones.conj()) == sum_of_bits(ones.conj().resolve_conj())


def test_another_order_has_another_sum() -> None:
    (one, other) = (torch.randperm(1 << 18) for _ in range(2))
    assert sum_of_bits(one) != sum_of_bits(other)


class Shifted(torch.nn.Module):
    """A layer whose bias is another on each rank, as is what it does not save."""

    def __init__(self, shift: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 4)
        self.layer.bias.data += shift
        self.register_buffer("room", torch.full((2,), shift), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the loss of ``x`` ``[4, 4]``."""
        return self.layer(x).square().mean()


def begin_unlike(mesh: str) -> str:
    plan = pt.plan(Shifted(0.0), torch.ones(4, 4), mesh=mesh)
    model = Shifted(float(os.environ["RANK"]))
    with pytest.raises(BadOptions) as refused:
        pt.compile(model, plan)
    state = Shifted(0.0).state_dict()
    assert pt.compile(model, plan, init=state).step(torch.ones(4, 4)).isfinite()
    return str(refused.value)


@pytest.mark.dist
@pytest.mark.parametrize("mesh", ["dp=2", "tp=2", "pp=2"])
def test_all_ranks_are_told_of_unlike_models(mesh: str) -> None:
    told = launch(begin_unlike, 2, (mesh,), timeout_s=60)
    assert told == 2 * [
        "init: rank 1 begins with other values of 'layer.bias' than rank 0; want the "
        "same on all: call torch.manual_seed before the model is made, or give init a "
        "seed or a state dict"
    ]


class Drawn(torch.nn.Module):
    """A layer, a buffer that is not saved, and a tensor that is none of them."""

    def __init__(self, room: float, noise: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 4)
        self.register_buffer("room", torch.full((4,), room), persistent=False)
        self.noise = torch.full((4,), noise)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the loss of ``x`` ``[4, 4]``."""
        return (self.layer(x) * self.room + self.noise).square().mean()


def draw_unlike(mesh: str) -> list[str]:
    plan = pt.plan(Drawn(1.0, 1.0), torch.ones(4, 4), mesh=mesh)
    shift = float(os.environ["RANK"])
    found: list[str] = []
    for model in (Drawn(1.0 + shift, 1.0), Drawn(1.0, 1.0 + shift)):
        with pytest.raises(BadOptions) as refused:
            pt.compile(model, plan)
        found.append(str(refused.value).partition(" than ")[0])
    return found


@pytest.mark.dist
def test_so_is_what_a_model_reads_and_does_not_save() -> None:
    begins = "init: rank 1 begins with other values of"
    assert launch(draw_unlike, 2, ("dp=2",), timeout_s=60) == 2 * [
        [f"{begins} 'room'", f"{begins} 'constant.0, a tensor of its code'"]
    ]
