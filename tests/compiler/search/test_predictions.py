"""The predicted time of a plan is a formula of the machine's figures, written here."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

import pytest
import torch
from tests.compiler.search.hand_made import machine, planner
from tests.models.searched import searched
from torch import Tensor, nn

from partita.compiler.ir.mesh import Mesh
from partita.compiler.plan.plan import Plan

FLOPS, MEMORY, LAUNCH, ALPHA, WIRE, FAST = 1e9, 2e9, 1e-6, 3e-6, 1e8, 1e9
MACHINE = machine(
    flops_per_s=FLOPS,
    memory_bytes_per_s=MEMORY,
    launch_s=LAUNCH,
    alpha_s=ALPHA,
    bytes_per_s=WIRE,
    fast={"fast": FAST},
)
TP, GRID = Mesh(tp=2), Mesh(dp=2, fast=2)
M, K, N = 8, 4, 6


def op(flops: float, *numels: float) -> float:
    """An op: the roofline over f32 tensors, and a launch."""
    return LAUNCH + max(flops / FLOPS, 4 * sum(numels) / MEMORY)


def mm(m: float, k: float, n: float) -> float:
    return op(2 * m * k * n, m * k, k * n, m * n)


def copied(num_bytes: float) -> float:
    return LAUNCH + num_bytes / MEMORY


def all_reduce(num_bytes: float, size: int = 2, rate: float = WIRE) -> float:
    """The machine's own, or an exchange: repeated for each, and added up by each."""
    steps = 2 * (size - 1)
    own_s = steps * ALPHA + ceil(steps * num_bytes / size) / rate
    touched = (size + 1) * num_bytes
    exchanged_s = (size - 1) * (ALPHA + num_bytes / rate) + 2 * copied(touched)
    return min(own_s, exchanged_s)


def scatter(num_bytes: float, size: int = 2, rate: float = WIRE) -> float:
    """A reduce-scatter or an all-to-all."""
    return (size - 1) * ALPHA + ceil((size - 1) * num_bytes / size) / rate


def gather(shard_bytes: float, size: int = 2, rate: float = WIRE) -> float:
    return (size - 1) * (ALPHA + shard_bytes / rate)


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(K, N))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


class Activated(Product):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x @ self.w)


class Scored(Product):
    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.w).sum()


def make(
    kind: Callable[[], nn.Module],
    mesh: Mesh,
    pins: dict[str, str],
    train: bool = False,
    optimizer: str = "adamw",
) -> Plan:
    found = planner(
        kind(),
        torch.ones(M, K),
        mesh=mesh,
        pins=pins,
        train=train,
        hardware=MACHINE,
        optimizer=optimizer,
    )
    return searched(found)


INFERENCE: dict[str, tuple[Callable[[], nn.Module], Mesh, dict[str, str], float]] = {
    "whole on every rank": (
        Product,
        TP,
        {"x": "B", "w": "B use=B", "mm/0": "B"},
        mm(M, K, N),
    ),
    "rows of the input": (
        Product,
        TP,
        {"x": "S(0)", "w": "B use=B"},
        mm(M / 2, K, N),
    ),
    "columns of the weight": (
        Product,
        TP,
        {"x": "B", "w": "S(1)", "mm/0": "S(1)"},
        mm(M, K, N / 2),
    ),
    "rows of the weight, all-reduced": (
        Activated,
        TP,
        {"x": "S(1)", "w": "S(0)", "mm/0": "P", "relu/0": "B"},
        mm(M, K / 2, N) + all_reduce(4 * M * N) + op(M * N, M * N, M * N),
    ),
    "rows of the weight, reduce-scattered": (
        Activated,
        TP,
        {"x": "S(1)", "w": "S(0)", "mm/0": "P", "relu/0": "S(0)"},
        mm(M, K / 2, N) + scatter(4 * M * N) + op(M * N / 2, M * N / 2, M * N / 2),
    ),
    "input gathered for its use": (
        Product,
        TP,
        {"x": "S(0) use=B", "w": "S(1)", "mm/0": "S(1)"},
        gather(4 * M * K / 2) + mm(M, K, N / 2),
    ),
    "weight sliced for its use": (
        Product,
        TP,
        {"x": "B", "w": "B use=S(1)", "mm/0": "S(1)"},
        copied(2 * 4 * K * N / 2) + mm(M, K, N / 2),
    ),
    "result from rows to columns": (
        Activated,
        TP,
        {"x": "S(0)", "w": "B use=B", "mm/0": "S(0)", "relu/0": "S(1)"},
        mm(M / 2, K, N)
        + scatter(4 * M * N / 2)
        + copied(2 * 4 * M * N / 2)
        + op(M * N / 2, M * N / 2, M * N / 2),
    ),
    "uneven rows of the input": (
        Product,
        Mesh(tp=3),
        {"x": "S(0)", "w": "B use=B"},
        mm(ceil(M / 3), K, N),
    ),
    "both axes, reduced over the fast one": (
        Activated,
        GRID,
        {"x": "(S(0), S(1))", "w": "(B, S(0))", "relu/0": "(S(0), B)"},
        mm(M / 2, K / 2, N)
        + all_reduce(4 * M * N / 2, rate=FAST)
        + op(M * N / 2, M * N / 2, M * N / 2),
    ),
}


@pytest.mark.parametrize("name", INFERENCE)
def test_inference_costs_what_the_formula_says(name: str) -> None:
    kind, mesh, pins, seconds = INFERENCE[name]
    plan = make(kind, mesh, pins)
    assert plan.predicted.seconds == pytest.approx(seconds, rel=1e-12)
    parts = plan.predicted.seconds_by_part
    assert sum(parts.values()) == pytest.approx(seconds, rel=1e-12)


def update(numel: float, kernels: tuple[int, ...] = (2, 3, 2, 3, 2, 2, 2, 4)) -> float:
    """Torch's AdamW on a CPU, line by line: the tensors that each reads and writes."""
    return sum(LAUNCH + 4 * passes * numel / MEMORY for passes in kernels)


def scored(m: float, n: float) -> float:
    """Forward, the sum, and the gradient of the weight: x^T times ones."""
    return mm(m, K, n) + op(m * n, m * n, 1) + mm(K, m, n)


TRAINING: dict[str, tuple[Mesh, dict[str, str], str, float]] = {
    "data parallel": (
        TP,
        {"x": "S(0)", "w": "B use=B"},
        "adamw",
        scored(M / 2, N) + all_reduce(4) + all_reduce(4 * K * N) + update(K * N),
    ),
    "data parallel, sgd": (
        TP,
        {"x": "S(0)", "w": "B use=B"},
        "sgd",
        scored(M / 2, N) + all_reduce(4) + all_reduce(4 * K * N) + update(K * N, (3,)),
    ),
    "data parallel on four": (
        Mesh(dp=4),
        {"x": "S(0)", "w": "B use=B"},
        "adamw",
        scored(M / 4, N) + all_reduce(4, 4) + all_reduce(4 * K * N, 4) + update(K * N),
    ),
    "weight in pieces, gathered for its use": (
        TP,
        {"x": "S(0)", "w": "S(0) use=B"},
        "adamw",
        scored(M / 2, N)
        + all_reduce(4)
        + gather(4 * K * N / 2)
        + scatter(4 * K * N)
        + update(K * N / 2),
    ),
    "columns of the weight": (
        TP,
        {"x": "B", "w": "S(1)", "sum/0": "P"},
        "adamw",
        scored(M, N / 2) + all_reduce(4) + update(K * N / 2),
    ),
    "rows by the slow axis, columns by the fast one": (
        GRID,
        {
            "x": "(S(0), B)",
            "w": "(B, S(1)) use=(B, S(1))",
            "mm/0": "(S(0), S(1))",
            "sum/0": "(P, P)",
        },
        "adamw",
        scored(M / 2, N / 2)
        + all_reduce(4)
        + all_reduce(4, rate=FAST)
        + all_reduce(4 * K * N / 2)
        + update(K * N / 2),
    ),
}


@pytest.mark.parametrize("name", TRAINING)
def test_training_costs_what_the_formula_says(name: str) -> None:
    mesh, pins, optimizer, seconds = TRAINING[name]
    plan = make(Scored, mesh, pins, train=True, optimizer=optimizer)
    assert plan.predicted.seconds == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize("count", [2, 4])
def test_microbatches_compute_often_and_reduce_once(count: int) -> None:
    plan = searched(
        planner(
            Scored(),
            torch.ones(M, K),
            mesh=TP,
            pins={"x": "S(0)", "w": "B use=B", "sum/0": "P"},
            hardware=MACHINE,
            microbatches=count,
        )
    )
    work = count * scored(M / count / 2, N)
    zeros = op(0, 1) + op(0, K * N)
    added = zeros + count * (op(0, 3) + op(0, 3 * K * N))
    reduced = all_reduce(4) + all_reduce(4 * K * N)
    parts = plan.predicted.seconds_by_part
    assert parts == {
        "compute": pytest.approx(work, rel=1e-12),
        "accumulation": pytest.approx(added, rel=1e-12),
        "communication tp": pytest.approx(reduced, rel=1e-12),
        "update": pytest.approx(update(K * N), rel=1e-12),
    }
    assert plan.predicted.seconds == pytest.approx(sum(parts.values()), rel=1e-12)
    (total,) = plan.collectives  # exchanged: put in once for each rank
    assert total.kind == "all_to_all"
    assert (total.count, total.bytes) == (2, 2 * (4 + 4 * K * N))


@pytest.mark.parametrize("count", [2, 4])
def test_microbatches_box_what_they_use_each(count: int) -> None:
    plan = searched(
        planner(
            Scored(),
            torch.ones(M, K),
            mesh=TP,
            pins={"x": "S(0)", "w": "S(0) use=B", "sum/0": "P"},
            hardware=MACHINE,
            microbatches=count,
        )
    )
    parts = plan.predicted.seconds_by_part
    gathered = count * gather(4 * K * N / 2)
    completed = all_reduce(4) + scatter(4 * K * N)
    assert parts["communication tp"] == pytest.approx(gathered + completed, rel=1e-12)
    counts = {total.kind: total.count for total in plan.collectives}
    assert counts == {"all_gather": count, "all_to_all": 1, "reduce_scatter": 1}


def test_parts_say_where_the_time_goes() -> None:
    mesh, pins, _, _ = TRAINING["rows by the slow axis, columns by the fast one"]
    parts = make(Scored, mesh, pins, train=True).predicted.seconds_by_part
    assert parts == {
        "compute": pytest.approx(scored(M / 2, N / 2)),
        "update": pytest.approx(update(K * N / 2)),
        "communication dp": pytest.approx(all_reduce(4) + all_reduce(4 * K * N / 2)),
        "communication fast": pytest.approx(all_reduce(4, rate=FAST)),
    }
