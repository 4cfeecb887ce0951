"""On a real GPU: one rank trains as the eager model does, and ranks verify there."""

from __future__ import annotations

import warnings
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
from partita.compiler.capture.grouped import multiply_groups, outer_groups
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # once a process: that this is a prototype
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
    name: str, device: str, document: dict[str, Any], compilation: str = "regions"
) -> tuple[str, float]:
    """Return the backend and how far the program's training is from the eager one.

    The model comes from main memory, the batch is on the device.
    """
    model, _, _ = ZOO[name]()
    _, args, kwargs = built_on(name, device)
    plan = pt.Plan.from_dict(document)
    program = pt.compile(model, plan, device=device, compilation=compilation)
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


@pytest.mark.parametrize("compilation", ["whole", "cuda-graph"])
@pytest.mark.parametrize("name", NAMES)
def test_a_program_compiled_as_a_whole_trains_as_the_eager_model_does(
    name: str, compilation: str
) -> None:
    plan = planned(name).to_dict()
    ((_, error),) = launch(train_on_one_rank, 1, (name, "cuda", plan, compilation))
    assert error <= 1e-4


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
def test_what_a_graph_made_is_the_users() -> None:
    model, args, kwargs = ZOO["mlp"]()
    plan = planned("mlp")
    program = pt.compile(model, plan, device="cuda", compilation="cuda-graph")
    first = program.step(*args, **kwargs)
    value = float(first)
    gradients = [p.grad.clone() for p in program.parameters() if p.grad is not None]
    with torch.no_grad():
        for parameter in program.parameters():
            parameter.mul_(2.0)
    second = program.step(*args, **kwargs)  # its gradients are added to the first's
    assert float(first) == value != float(second)
    for parameter, gradient in zip(program.parameters(), gradients, strict=True):
        assert parameter.grad is not None
        parameter.grad -= gradient
    for parameter in program.parameters():
        parameter.data = parameter.data.clone() / 2.0  # and lies elsewhere
    program.release_copies()
    program.zero_grad()
    assert float(program.step(*args, **kwargs)) == pytest.approx(value, rel=1e-5)
    for parameter, gradient in zip(program.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
def test_a_batch_in_main_memory_comes_without_a_wait() -> None:
    model, args, kwargs = ZOO["gpt2"]()
    program = pt.compile(model, planned("gpt2"), device="cuda", compilation="eager")
    _, there_args, there_kwargs = built_on("gpt2", "cuda")
    wanted = program.step(*there_args, **there_kwargs)  # also starts kernels up
    with refusing_to_wait("cuda"):
        found = program.step(*args, **kwargs)
    torch.testing.assert_close(found, wanted)


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
    device: str,
    dtype: torch.dtype,
    num_key_heads: int,
    *,
    is_causal: bool,
    mask: torch.Tensor | None = None,
) -> float:
    """Return how far outputs and gradients are from those in double precision."""
    torch.manual_seed(0)
    query = torch.randn(2, 4, 36, 16, device=device, dtype=dtype)
    key, value = torch.randn(2, 2, num_key_heads, 36, 16, device=device, dtype=dtype)
    grad = torch.randn_like(query)
    results: list[list[torch.Tensor]] = []
    for kind in (dtype, torch.float64):
        q, k, v, g = (x.to(kind) for x in (query, key, value, grad))
        out, lse = attend(q, k, v, mask, is_causal, 0.25)
        grads = attend_backward(g, q, k, v, mask, out, lse, is_causal, 0.25)
        results.append([out, lse, *grads])
    return max(
        float((a.double() - b).abs().max() / b.abs().max())
        for a, b in zip(*results, strict=True)
    )


ALLOWED = {torch.float16: 0.005, torch.bfloat16: 0.03, torch.float32: 1e-5}


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("num_key_heads", [4, 2])
@pytest.mark.parametrize("dtype", ALLOWED)
def test_attention(dtype: torch.dtype, num_key_heads: int, is_causal: bool) -> None:
    """By flash attention where there are 16 bits, by efficient attention otherwise."""
    error = attention_error("cuda", dtype, num_key_heads, is_causal=is_causal)
    assert error <= ALLOWED[dtype]


@pytest.mark.parametrize("shape", [(2, 1, 1, 36), (36, 36), (2, 4, 36, 1)])
@pytest.mark.parametrize("dtype", ALLOWED)
def test_attention_with_scores_to_add(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    torch.manual_seed(1)
    mask = torch.rand(shape, device="cuda") < 0.7
    mask[..., 0] = True  # whoever may see nothing has no log-sum-exp to compare
    added = torch.randn(shape, device="cuda").to(dtype)
    for each in (mask, added):
        error = attention_error("cuda", dtype, 2, is_causal=False, mask=each)
        assert error <= ALLOWED[dtype]


def test_who_may_see_nothing_gets_zeros_and_leaves_no_gradient() -> None:
    query, key, value, grad = torch.randn(4, 1, 2, 8, 16, device="cuda")
    mask = torch.ones(8, 8, dtype=torch.bool, device="cuda")
    mask[3] = False
    out, lse = attend(query, key, value, mask, False, 0.25)
    grads = attend_backward(grad, query, key, value, mask, out, lse, False, 0.25)
    assert all(bool(x.isfinite().all()) for x in (out, *grads))
    assert float(out[:, :, 3].abs().max()) == 0.0
    assert float(grads[0][:, :, 3].abs().max()) == 0.0


@pytest.mark.parametrize("own", [8, 3], ids=["all groups", "some groups"])
def test_grouped_products_wait_for_no_number_of_rows(own: int) -> None:
    """Whatever rows a group has: some have none, some rows no group of the rank's."""
    torch.manual_seed(0)
    x, grad = (torch.randn(96, size).bfloat16() for size in (32, 64))
    weight = torch.randn(own, 32, 64).bfloat16()
    group = torch.randint(0, 7, (96, 1))
    member = group == torch.arange(8)[8 - own :]
    given = [(multiply_groups, (x, weight, member)), (outer_groups, (x, grad, member))]
    for product, operands in given:
        there = [operand.cuda() for operand in operands]
        with refusing_to_wait("cuda"):
            found = product(*there)
        wanted = product(
            *[t.double() if t.is_floating_point() else t for t in operands]
        )
        torch.testing.assert_close(found.cpu().double(), wanted, rtol=2e-2, atol=2e-2)
