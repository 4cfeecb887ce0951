"""A part of a gradient is a tensor to all but torch, where it joins norms.

That joined norms are those of one process is tested by test_program.py.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from partita.compiler.errors import BadOptions
from partita.runtime.shard_gradient import Part, ShardGradient

vector_norm: Any = torch.linalg.vector_norm
Make = Callable[[Any], Any]
MAKES: list[Make] = [
    lambda g: g * 2,
    lambda g: g.data,
    lambda g: g.flatten(),
    lambda g: g.norm(),
    lambda g: g.data.abs().max(),
    lambda g: g.isfinite().all(),
    lambda g: g.mean(dim=1),
    lambda g: vector_norm(g).item(),
    lambda g: vector_norm(g) ** 2,
    lambda g: vector_norm(x=g),
    lambda g: torch.sum(input=g),
    copy.deepcopy,
]


def a_part(*, is_of_stage: bool = False) -> ShardGradient:
    part = Part(is_counted=True, is_first=True, is_of_stage=is_of_stage)
    return ShardGradient.of(torch.tensor([[3.0, -4.0], [0.0, 0.0]]), part)


@pytest.mark.parametrize("make", MAKES)
def test_what_is_made_of_a_part_is_of_what_is_here(make: Make) -> None:
    found, wanted = make(a_part()), make(a_part().plain())
    assert not isinstance(found, ShardGradient)
    torch.testing.assert_close(found, wanted)


def test_parts_are_compared_as_tensors_are() -> None:
    torch.testing.assert_close(a_part(), a_part().plain())
    with pytest.raises(AssertionError, match="Mismatched elements: 2 / 4"):
        torch.testing.assert_close(a_part(), torch.zeros(2, 2))


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_optimizers_take_it(kind: Callable[..., Any], foreach: bool) -> None:
    found = []
    for gradient in (a_part(), a_part().plain()):
        weight = nn.Parameter(torch.ones(2, 2))
        weight.grad = gradient
        kind([weight], lr=0.1, weight_decay=0.1, foreach=foreach).step()
        assert type(weight) is nn.Parameter
        found.append(weight.tolist())
    assert found[0] == found[1]


def test_values_are_clipped_and_elements_are_looked_at() -> None:
    weight = nn.Parameter(torch.ones(2, 2))
    weight.grad = a_part()
    clip_grad_value_([weight], 1.0)
    assert weight.grad.tolist() == [[1.0, -1.0], [0.0, 0.0]]
    assert weight.grad[0, 1].item() == -1.0
    assert weight.grad.plain().norm() == 2**0.5
    assert type(pickle.loads(pickle.dumps(weight.grad))) is torch.Tensor


def test_the_norm_of_a_stage_is_refused() -> None:
    weight = nn.Parameter(torch.ones(2, 2))
    weight.grad = a_part(is_of_stage=True)
    with pytest.raises(BadOptions) as refused:
        clip_grad_norm_([weight], 1.0)
    assert str(refused.value) == (
        "norm of gradients: other stages of the pipeline have gradients too; want "
        "program.clip_grad_norm_(max_norm), which counts all ranks and returns the norm"
    )


def test_a_scaler_of_one_rank_is_refused() -> None:
    weight = nn.Parameter(torch.ones(2, 2))
    weight.grad = a_part()
    optimizer = torch.optim.SGD([weight])
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    with pytest.raises(BadOptions, match=r"^GradScaler: .* want pt.LossScaler\(prog"):
        scaler.step(optimizer)
