"""Machines with round figures, random models of a few ops, and a search by hand."""

from __future__ import annotations

import random
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from partita.compiler.hardware.profile import (
    CollectiveCost,
    CollectiveKind,
    Device,
    Hardware,
    Link,
)
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.search.problem import Problem, made_placement, tied_placement
from partita.one_mesh.planner import Planner
from partita.options import Options


def machine(
    *,
    flops_per_s: float = 1e9,
    memory_bytes_per_s: float = 1e9,
    launch_s: float = 1e-6,
    alpha_s: float = 1e-6,
    bytes_per_s: float = 1e8,
    fast: dict[str, float] | None = None,
    overlap: float = 0.0,
) -> Hardware:
    """Return a machine; axes named in ``fast`` run over links of that bandwidth."""

    def costs(bandwidth: float) -> dict[CollectiveKind, CollectiveCost]:
        cost = CollectiveCost(alpha_s, bandwidth)
        return dict.fromkeys(CollectiveKind, cost)

    links = [Link("wire", None, costs(bytes_per_s))]
    links += [
        Link(f"{axis} wire", 1, costs(rate)) for axis, rate in (fast or {}).items()
    ]
    figures = flops_per_s, memory_bytes_per_s, launch_s, alpha_s, bytes_per_s, fast
    return Hardware(
        name="by hand",
        source=f"{figures}, {overlap}",  # machines are told apart by it
        overlap=overlap,
        device=Device(
            "cpu", {"f32": flops_per_s}, memory_bytes_per_s, 1 << 30, launch_s
        ),
        links=tuple(links),
        axes={axis: f"{axis} wire" for axis in fast or {}},
    )


def planner(
    model: nn.Module,
    *args: Any,
    mesh: Mesh,
    pins: dict[str, str] | None = None,
    train: bool = True,
    hardware: Hardware | None = None,
    optimizer: str = "adamw",
    microbatches: int = 1,
) -> Planner:
    """Return the search of a model on a mesh."""
    options = Options(
        hardware=hardware or machine(),
        pins=pins or {},
        train=train,
        optimizer=optimizer,
        microbatches=microbatches,
    )
    return Planner.of(model, args, {}, mesh, options)


class RandomModel(nn.Module):
    """Up to ``num_ops`` ops, drawn at random, on matrices of even and uneven sizes."""

    def __init__(self, seed: int, num_ops: int) -> None:
        super().__init__()
        self.seed = seed
        self.num_ops = num_ops
        rng = random.Random(seed)
        sizes = [rng.choice([3, 4, 6, 8, 12]) for _ in range(3)]
        self.first = nn.Parameter(torch.randn(sizes[0], sizes[1]))
        self.second = nn.Parameter(torch.randn(sizes[1], sizes[2]))
        self.num_rows = sizes[0]

    def inputs(self) -> Tensor:
        """Return an input that fits."""
        return torch.randn(self.num_rows, self.first.shape[1])

    def forward(self, x: Tensor) -> Any:
        return self._loss(self._values(x))

    def _values(self, x: Tensor) -> list[Tensor]:
        rng = random.Random(self.seed)
        values: list[Tensor] = [x, self.first, self.second]
        for _ in range(rng.randint(2, self.num_ops)):
            values.append(self._step(rng, values))
        return values

    def _loss(self, values: list[Tensor]) -> Tensor:
        used = values[-1]
        return used.sum() if used.requires_grad else (used * self.first.sum()).sum()

    def _step(self, rng: random.Random, values: list[Tensor]) -> Tensor:
        a = rng.choice(values)
        kind = rng.choice(["mm", "add", "mul", "unary", "reshape", "reduce", "cat"])
        alike = [b for b in values if b.shape == a.shape]
        chained = [
            b for b in values if b.ndim == a.ndim == 2 and b.shape[0] == a.shape[1]
        ]
        match kind:
            case "mm" if chained:
                return a @ rng.choice(chained)
            case "add":
                return a + rng.choice(alike)
            case "mul":
                return a * rng.choice(alike)
            case "reshape" if a.ndim:
                return a.flatten() if rng.random() < 0.5 else a.unsqueeze(0)
            case "reduce" if a.ndim:
                return a.sum(rng.randrange(a.ndim))
            case "cat" if a.ndim:
                return torch.cat([a, rng.choice(alike)], rng.randrange(a.ndim))
            case _:
                return rng.choice([torch.relu, torch.exp, torch.neg])(a)


class TellingModel(RandomModel):
    """A random model that hands over what its ops made, beside the loss."""

    def forward(self, x: Tensor) -> dict[str, Any]:
        values = self._values(x)
        made = {str(at): value for at, value in enumerate(values[3:])}
        return {"loss": self._loss(values), **made}


class BruteForce:
    """Tries every assignment, node by node, but those that cost too much already."""

    def __init__(self, problem: Problem, limit: float) -> None:
        self.problem = problem
        self.best = limit
        self.choices: list[int] = []
        self.num_tried = 0
        least = [min(c.seconds for c in node.choices) for node in problem.nodes]
        self.rest = [sum(least[index:]) for index in range(len(least) + 1)]
        self.firsts = {tie.second: tie.first for tie in problem.ties}
        self.prices: dict[Any, float] = {}
        self._chosen: list[int] = []
        self._wanted: dict[tuple[int, int], set[Placement]] = {}
        self._visit(0, 0.0)

    def _visit(self, index: int, cost: float) -> None:
        if cost + self.rest[index] >= self.best:
            return
        if index == len(self.problem.nodes):
            self.best, self.choices = cost, list(self._chosen)
            return
        node = self.problem.nodes[index]
        for number, choice in enumerate(node.choices):
            self.num_tried += 1
            if index in self.firsts:
                first = self.firsts[index]
                tied = self.problem.nodes[first].choices[self._chosen[first]]
                if choice.signature.operands[0] != tied_placement(tied):
                    continue
            total, added = (
                cost + choice.seconds,
                list[tuple[tuple[int, int], Placement]](),
            )
            for value, want in zip(
                node.operands, choice.signature.operands, strict=True
            ):
                wants = self._wanted.setdefault(value, set())
                if want not in wants:
                    wants.add(want)
                    added.append((value, want))
                    total += self._price(value, want)
            self._chosen.append(number)
            self._visit(index + 1, total)
            self._chosen.pop()
            for value, want in added:
                self._wanted[value].discard(want)

    def _made(self, value: tuple[int, int]) -> Placement:
        source, result = value
        choice = self.problem.nodes[source].choices[self._chosen[source]]
        return made_placement(choice, result)

    def _price(self, value: tuple[int, int], want: Placement) -> float:
        made = self._made(value)
        key = value, made, want
        if key not in self.prices:
            type_ = self.problem.nodes[value[0]].result_types[value[1]]
            assert type_ is not None
            box = self.problem.box_seconds
            self.prices[key] = 0.0 if made == want else box(type_, made, want)
        return self.prices[key]


def brute_force(problem: Problem, limit: float = inf) -> BruteForce:
    """Return the cheapest of all assignments that cost less than ``limit``."""
    return BruteForce(problem, limit)


class Uneven(nn.Module):
    """Takes 12 rows of 6; three ranks that gather its own 22 pad them to 24."""

    PADDED = 24 * 12 * 4  # bytes of the gradient of what it makes of rows, transposed

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(22, 6))
        self.last = nn.Linear(22, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(x @ self.weight.t())).sum()
