"""Training on real gloo ranks: equal to one process, and as the plan counts it."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tests.e2e.planned_collectives import counted, planned
from tests.models.zoo import ZOO, Built, tensor_parallel_pins
from tests.slow import slow

import partita as pt
from partita.passes.promote_precision import promote_arguments
from partita.runtime.launch import launch
from partita.runtime.measure import count_collectives
from partita.verifying.precision import double_precision, promoting_floats

pytestmark = pytest.mark.dist

NUM_STEPS = 3
RATE = 0.05


def _built(name: str, dtype: torch.dtype) -> Built:
    model, args, kwargs = ZOO[name]()

    def cast(value: Any) -> Any:
        is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.to(dtype) if is_float else value

    model = model.to(dtype)
    return model, tuple(map(cast, args)), {n: cast(v) for n, v in kwargs.items()}


@contextmanager
def _all_in(dtype: torch.dtype) -> Generator[None, None, None]:
    """For doubles, promote the casts to float that models make on their own."""
    if dtype == torch.float64:
        with double_precision(), promoting_floats(promote_arguments):
            yield
    else:
        yield


def _optimizer(dtype: torch.dtype, parameters: Any) -> torch.optim.Optimizer:
    if dtype == torch.float64:
        return torch.optim.AdamW(parameters, lr=RATE / 10)
    return torch.optim.SGD(parameters, lr=RATE)


def train_on_rank(name: str, document: Any, is_double: bool) -> dict[str, Any]:
    """Train on this rank; return losses, final values and what it communicated."""
    dtype = torch.float64 if is_double else torch.float32
    model, args, kwargs = _built(name, dtype)
    program = pt.compile(model, pt.Plan.from_dict(document), device="cpu")
    optimizer = _optimizer(dtype, program.parameters())
    losses: list[float] = []
    with _all_in(dtype):
        with count_collectives() as found:
            losses.append(float(program.step(*args, **kwargs)))
        for step in range(NUM_STEPS):
            if step:
                losses.append(float(program.step(*args, **kwargs)))
            optimizer.step()
            optimizer.zero_grad()
    values = {n: v.full_tensor() for n, v in program.state_dict().items()}  # type: ignore[attr-defined]
    return {"losses": losses, "values": values, "counted": counted(found)}


def _train_alone(built: Built, dtype: torch.dtype) -> tuple[list[float], Any]:
    model, args, kwargs = built
    model = copy.deepcopy(model)
    optimizer = _optimizer(dtype, model.parameters())
    losses: list[float] = []
    for _ in range(NUM_STEPS):
        with _all_in(dtype):
            output = model(*args, **kwargs)
            loss = output if isinstance(output, torch.Tensor) else output.loss
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses, model.state_dict()


def _check(name: str, mesh: pt.Mesh, options: pt.Options, dtype: torch.dtype) -> None:
    built = _built(name, dtype)
    model, args, kwargs = built
    plan = pt.plan(model, *args, mesh=mesh, options=options, **kwargs)
    losses, values = _train_alone(built, dtype)
    is_double = dtype == torch.float64
    tolerance = 1e-9 if is_double else 1e-5
    results = launch(
        f"{__file__}:train_on_rank",
        mesh.size,
        (name, plan.to_dict(), is_double),
        timeout_s=110.0,
    )
    for rank, result in enumerate(results):
        assert result["losses"] == pytest.approx(losses, rel=tolerance)
        assert result["counted"] == planned(plan, rank, is_double=is_double)
        assert set(result["values"]) == set(values)
        for key, value in values.items():
            found = result["values"][key]
            torch.testing.assert_close(found, value, rtol=tolerance, atol=tolerance)
    if is_double:
        return  # the plan's own totals are of the casts that the model names
    totals: Counter[tuple[str, int]] = Counter()
    for (kind, _, payload), count in results[0]["counted"].items():
        totals[kind, 0] += count
        totals[kind, 1] += count * payload
    for kind in {total.kind for total in plan.collectives}:
        wanted = [total for total in plan.collectives if total.kind == kind]
        assert totals[kind, 0] == sum(total.count for total in wanted)
        assert totals[kind, 1] == sum(total.bytes for total in wanted)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        slow("mlp", torch.float32),
        slow("mlp", torch.float64),
        slow("gpt2", torch.float32),
        ("gpt2", torch.float64),
        slow("llama", torch.float32),
        slow("llama", torch.float64),
    ],
)
def test_two_ranks_train_as_one_process_does(name: str, dtype: torch.dtype) -> None:
    pins = tensor_parallel_pins(ZOO[name]()[0], 1)
    _check(name, pt.Mesh(tp=2), pt.Options(pins=pins), dtype)


def test_two_ranks_train_in_microbatches_as_one_process_does() -> None:
    pins = tensor_parallel_pins(ZOO["gpt2"]()[0], 1)
    options = pt.Options(pins=pins, microbatches=2)
    _check("gpt2", pt.Mesh(tp=2), options, torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("mesh", [pt.Mesh(tp=2), pt.Mesh(dp=2, tp=2)], ids=str)
@pytest.mark.parametrize("name", ["mlp", "gpt2", "llama"])
def test_ranks_train_models_in_microbatches_as_one_process_does(
    name: str, mesh: pt.Mesh, count: int
) -> None:
    hardware = "cpu-gloo-free"
    options = pt.Options(hardware=hardware, time_limit=30, microbatches=count)
    _check(name, mesh, options, torch.float64)


@pytest.mark.parametrize("name", ["mlp", slow("gpt2")])
def test_two_by_two_ranks_train_as_one_process_does(name: str) -> None:
    options = pt.Options(hardware="cpu-gloo-free", time_limit=20)
    _check(name, pt.Mesh(dp=2, tp=2), options, torch.float32)


def test_a_split_vocabulary_trains_as_one_process_does() -> None:
    pins = {
        "transformer.wte.weight": "S(0) use=S(0)",
        "_log_softmax/0": "S(1)",  # reduced by maxima and sums over the ranks
    }
    _check("gpt2", pt.Mesh(tp=2), pt.Options(pins=pins), torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("mesh", [pt.Mesh(tp=4), pt.Mesh(dp=2, tp=2)], ids=str)
@pytest.mark.parametrize("name", ["mlp", "gpt2", "llama"])
def test_four_ranks_train_as_one_process_does(
    name: str, mesh: pt.Mesh, dtype: torch.dtype
) -> None:
    _check(name, mesh, pt.Options(hardware="cpu-gloo-free", time_limit=30), dtype)


def fail_on_second_rank() -> None:
    """Run a step on rank 0 while rank 1 fails before it."""
    model, args, kwargs = ZOO["mlp"]()
    options = pt.Options(pins=tensor_parallel_pins(model, 1))
    plan = pt.plan(model, *args, mesh=pt.Mesh(tp=2), options=options, **kwargs)
    program = pt.compile(model, plan, device="cpu")
    if program.groups.rank == 1:
        raise RuntimeError("the second rank cannot go on")
    program.step(*args, **kwargs)


def test_a_failing_rank_ends_all_with_its_own_error() -> None:
    with pytest.raises(pt.PartitaError, match="the second rank cannot go on"):
        launch(f"{__file__}:fail_on_second_rank", 2, timeout_s=100.0)
