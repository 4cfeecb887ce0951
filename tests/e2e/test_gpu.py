"""On a real GPU: one rank trains as the eager model does, and ranks verify there."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.models.zoo import ZOO, Built
from torch.utils import _pytree as pytree

import partita as pt
from partita.compiler.capture.attention import attend, attend_backward
from partita.runtime.launch import launch

pytestmark = pytest.mark.gpu

NUM_STEPS = 3
RATE = 0.05
NAMES = ("mlp", "gpt2")


def built_on(name: str, device: str) -> Built:
    """Return a model and its inputs on a device."""
    model, args, kwargs = ZOO[name]()

    def there(value: Any) -> Any:
        return value.to(device) if isinstance(value, torch.Tensor) else value

    args, kwargs = pytree.tree_map(there, (args, kwargs))
    return model.to(device), args, kwargs


@contextmanager
def refusing_to_wait(device: str) -> Generator[None, None, None]:
    """Within it an op for which the host would have to wait is an error."""
    if device == "cpu":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def train_eager(name: str, device: str) -> list[torch.Tensor]:
    """Return the losses and then the parameters of the user's own training."""
    model, args, kwargs = built_on(name, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses: list[torch.Tensor] = []
    for _ in range(NUM_STEPS):
        returned = model(*args, **kwargs)
        loss = returned if isinstance(returned, torch.Tensor) else returned.loss
        loss.backward()
        losses.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
    return [*losses, *(p.detach() for p in model.parameters())]


def train_on_one_rank(
    name: str, device: str, document: dict[str, Any]
) -> tuple[str, float]:
    """Return the backend and how far the program's training is from the eager one.

    The model comes from main memory, the batch is on the device.
    """
    model, _, _ = ZOO[name]()
    _, args, kwargs = built_on(name, device)
    program = pt.compile(model, pt.Plan.from_dict(document), device=device)
    optimizer = torch.optim.SGD(program.parameters(), lr=RATE)
    losses: list[torch.Tensor] = []
    for step in range(NUM_STEPS):
        if step < NUM_STEPS - 1:  # the first ones start kernels up
            losses.append(program.step(*args, **kwargs))
        else:
            with refusing_to_wait(device):
                losses.append(program.step(*args, **kwargs))
        optimizer.step()
        optimizer.zero_grad()
    found = [*losses, *(p.detach() for p in program.parameters())]
    wanted = train_eager(name, device)
    assert all(tensor.device.type == device for tensor in found)
    errors = [
        float((a - b).abs().max() / b.abs().max().clamp(min=1e-3))
        for a, b in zip(found, wanted, strict=True)
    ]
    return str(dist.get_backend()), max(errors)


def planned(name: str, *, fuse: bool = False) -> pt.Plan:
    """Return a plan for one rank; where memory is slow every small op is fused."""
    model, args, kwargs = ZOO[name]()
    hardware = pt.load_hardware("cpu-gloo")
    device = replace(hardware.device, memory_bytes_per_s=1e7)
    slow = replace(hardware, device=device)
    options = pt.Options(hardware=slow, fuse=fuse)
    return pt.plan(model, *args, mesh=pt.Mesh(dp=1), options=options, **kwargs)


@pytest.mark.parametrize("name", NAMES)
def test_one_rank_trains_as_the_eager_model_does(name: str) -> None:
    plan = planned(name).to_dict()
    ((backend, error),) = launch(train_on_one_rank, 1, (name, "cuda", plan))
    assert backend == "nccl"
    assert error <= 1e-4


def test_fused_regions_train_as_the_eager_model_does() -> None:
    plan = planned("gpt2", fuse=True)
    assert plan.fusion
    ((_, error),) = launch(train_on_one_rank, 1, ("gpt2", "cuda", plan.to_dict()))
    assert error <= 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_verify_on_the_gpu(name: str) -> None:
    model, args, kwargs = built_on(name, "cuda")
    plan = pt.plan(
        *(model, *args),
        mesh=pt.Mesh(tp=2),
        options=pt.Options(hardware="cpu-gloo-free", time_limit=20.0),
        **kwargs,
    )
    report = pt.verify(model, *args, plan=plan, **kwargs)
    assert report.ok, str(report)


def attention_error(
    device: str, dtype: torch.dtype, num_key_heads: int, *, is_causal: bool
) -> float:
    """Return how far outputs and gradients are from those in double precision."""
    torch.manual_seed(0)
    query = torch.randn(2, 4, 32, 16, device=device, dtype=dtype)
    key, value = torch.randn(2, 2, num_key_heads, 32, 16, device=device, dtype=dtype)
    grad = torch.randn_like(query)
    results: list[list[torch.Tensor]] = []
    for kind in (dtype, torch.float64):
        q, k, v, g = (x.to(kind) for x in (query, key, value, grad))
        out, lse = attend(q, k, v, None, is_causal, 0.25)
        grads = attend_backward(g, q, k, v, None, out, lse, is_causal, 0.25)
        results.append([out, lse, *grads])
    return max(
        float((a.double() - b).abs().max() / b.abs().max())
        for a, b in zip(*results, strict=True)
    )


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("num_key_heads", [4, 2])
def test_attention_in_half_precision(num_key_heads: int, is_causal: bool) -> None:
    """By flash attention on GPUs that have it."""
    for dtype, allowed in ((torch.float16, 0.005), (torch.bfloat16, 0.03)):
        error = attention_error("cuda", dtype, num_key_heads, is_causal=is_causal)
        assert error <= allowed
