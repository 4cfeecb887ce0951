"""All ranks of a mesh in one process, in lockstep, for tests of lowerings.

Shards are cut and put together here once more, by other means than the code under
test: by index lists, and axis by axis.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from itertools import product
from math import nan
from typing import Any

import torch
from tests.compiler.cost.boxing_pairs import held
from torch import Tensor, fx

from partita.compiler.cost.step import Step
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Broadcast, Partial, Placement, Reduction, Split
from partita.compiler.ir.tensor_type import TensorType
from partita.passes.lower_boxings import emit_steps

Coords = tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """A collective that one rank asks for."""

    op: str
    group: str
    args: tuple[Any, ...]
    x: Tensor

    @property
    def num_bytes(self) -> int:
        return self.x.numel() * self.x.dtype.itemsize


def scatter(
    x: Tensor, placement: Placement, mesh: Mesh, generator: torch.Generator
) -> list[Tensor]:
    """Return each rank's shard, partial values at random."""
    values: dict[Coords, Tensor] = {(): x}
    for axis, sharding in enumerate(placement.shardings):
        size = mesh.sizes[axis]
        values = {
            (*coords, index): part
            for coords, value in values.items()
            for index, part in enumerate(_parts(value, sharding, size, generator))
        }
    return [_select(values[c], placement, mesh, c) for c in mesh.all_coordinates()]


def _parts(
    x: Tensor, sharding: object, size: int, generator: torch.Generator
) -> list[Tensor]:
    if not isinstance(sharding, Partial):
        return [x] * size
    noise = [torch.randint(0, 9, x.shape, generator=generator) for _ in range(size)]
    if sharding.reduction is Reduction.SUM:
        others = [part.to(x.dtype) for part in noise[1:]]
        return [x - sum(others), *others]
    sign = -1 if sharding.reduction is Reduction.MAX else 1
    keeper = torch.randint(0, size, x.shape, generator=generator)
    return [x + sign * part * (keeper != i) for i, part in enumerate(noise)]


def _indices(
    shape: tuple[int, ...], placement: Placement, mesh: Mesh, coords: Coords
) -> list[Tensor]:
    dims = held(shape, placement, mesh, coords)
    return [torch.tensor(indices, dtype=torch.int64) for indices in dims]


def _select(x: Tensor, placement: Placement, mesh: Mesh, coords: Coords) -> Tensor:
    for dim, index in enumerate(_indices(tuple(x.shape), placement, mesh, coords)):
        x = x.index_select(dim, index)
    return x


def gather(
    shards: list[Tensor], shape: tuple[int, ...], placement: Placement, mesh: Mesh
) -> Tensor:
    """Return the logical tensor; copies must agree and shards must not overlap."""
    values: dict[Coords, Tensor] = {}
    for coords, shard in zip(mesh.all_coordinates(), shards, strict=True):
        whole = torch.full(shape, nan, dtype=torch.float64)
        indices = _indices(shape, placement, mesh, coords)
        whole[torch.meshgrid(*indices, indexing="ij") if indices else ...] = shard
        values[coords] = whole
    for axis in reversed(range(mesh.ndim)):
        outer = product(*(range(size) for size in mesh.sizes[:axis]))
        values = {
            coords: _join(
                [values[(*coords, i)] for i in range(mesh.sizes[axis])],
                placement.shardings[axis],
            )
            for coords in outer
        }
    return values[()]


def _join(parts: list[Tensor], sharding: object) -> Tensor:
    stacked = torch.stack(parts)
    match sharding:
        case Split():
            assert ((~stacked.isnan()).sum(0) <= 1).all(), "shards overlap"
            return torch.where(stacked.isnan().all(0), nan, stacked.nan_to_num().sum(0))
        case Broadcast():
            for part in parts[1:]:
                assert torch.equal(part.nan_to_num(0.5), parts[0].nan_to_num(0.5))
            return parts[0]
        case Partial(Reduction.SUM):
            return stacked.sum(0)
        case Partial(Reduction.MAX):
            return stacked.amax(0)
        case _:
            return stacked.amin(0)


def lowered(
    type: TensorType,
    steps: tuple[Step, ...],
    mesh: Mesh,
    coords: Coords,
    *,
    enters: bool = False,
) -> fx.Graph:
    """Return the program of the rank at ``coords``: x and the coordinates go in.

    ``enters`` says that x is held for the whole step.
    """
    graph = fx.Graph()
    x = graph.placeholder("x")
    nodes = tuple(graph.placeholder(f"coord_{name}") for name in mesh.names)
    made, _ = emit_steps(
        graph, x, type, steps, mesh, coords, nodes, stage=0, enters=enters
    )
    graph.output(made)
    graph.eliminate_dead_code()
    graph.lint()
    return graph


def _interpret(graph: fx.Graph, feeds: list[Any]) -> Generator[Call, Tensor, Tensor]:
    env: dict[fx.Node, Any] = {}
    inputs = iter(feeds)
    for node in graph.nodes:
        if node.op == "placeholder":
            env[node] = next(inputs)
            continue
        args, kwargs = fx.map_arg((node.args, node.kwargs), env.__getitem__)
        if node.op == "output":
            return args[0]
        name = str(node.target)
        if name.startswith("_c10d_functional.wait_tensor"):
            env[node] = args[0]
        elif name.startswith("_c10d_functional."):
            x, *middle, group = args
            op = name.split(".")[1]
            env[node] = yield Call(op, group, tuple(middle), x)
        else:
            env[node] = node.target(*args, **kwargs)
    raise AssertionError("a graph without output")


def run(
    graphs: list[fx.Graph], shards: list[Tensor], mesh: Mesh
) -> tuple[list[Tensor], list[list[Call]]]:
    """Return each rank's result, and the collectives that it called."""
    ranks = [
        _interpret(graph, [shard, *coords])
        for graph, shard, coords in zip(
            graphs, shards, mesh.all_coordinates(), strict=True
        )
    ]
    results: dict[int, Tensor] = {}
    calls: list[list[Call]] = [[] for _ in ranks]
    waiting: dict[int, Call] = {}

    def advance(rank: int, value: Tensor | None) -> None:
        try:
            waiting[rank] = ranks[rank].send(value)  # type: ignore[arg-type]
            calls[rank].append(waiting[rank])
        except StopIteration as stop:
            results[rank] = stop.value

    for rank in range(mesh.size):
        advance(rank, None)
    while waiting:
        group = _ready_group(waiting, mesh)
        for rank, value in zip(
            group, _perform([waiting[r] for r in group]), strict=True
        ):
            del waiting[rank]
            advance(rank, value)
    return [results[rank] for rank in range(mesh.size)], calls


def _ready_group(waiting: dict[int, Call], mesh: Mesh) -> tuple[int, ...]:
    for name in mesh.names:
        for group in mesh.groups(name):
            calls = [waiting.get(rank) for rank in group]
            if all(
                call is not None and call.group == f"stage0/{name}" for call in calls
            ):
                return group
    raise AssertionError(f"ranks wait for one another: {waiting}")


_REDUCE: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(0),
    "max": lambda x: x.amax(0),
    "min": lambda x: x.amin(0),
}


def _perform(calls: list[Call]) -> list[Tensor]:
    first, num = calls[0], len(calls)
    assert {call.op for call in calls} == {first.op}
    inputs = [call.x for call in calls]
    if first.op == "all_to_all_single":
        for me, call in enumerate(calls):
            assert list(call.args[0]) == [other.args[1][me] for other in calls]
        blocks = [call.x.split(list(call.args[1])) for call in calls]
        return [torch.cat([blocks[j][i] for j in range(num)]) for i in range(num)]
    assert {(call.args, call.x.shape) for call in calls} == {
        (first.args, first.x.shape)
    }
    match first.op:
        case "all_gather_into_tensor":
            assert first.args == (num,)
            return [torch.cat(inputs)] * num
        case "all_reduce":
            return [_REDUCE[first.args[0]](torch.stack(inputs))] * num
        case "reduce_scatter_tensor":
            assert first.args[1] == num
            return list(_REDUCE[first.args[0]](torch.stack(inputs)).chunk(num))
        case op:
            raise AssertionError(op)
