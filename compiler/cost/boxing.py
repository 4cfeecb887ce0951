"""The cheapest way from one placement of a tensor to another.

A boxing is a sequence of steps, each on one mesh axis; Dijkstra's algorithm finds
the cheapest sequence. Placements on the way use, per axis, ``B``, the splits that the
axis makes even or nearly so, and what source and target have there: a dim that is only
visited (``(S(0), S(0)) -> (B, S(0))`` by way of ``S(1)``) often beats a gather.

Prices are compared by seconds, then by wire bytes, then by the number of steps.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import lru_cache
from itertools import count

from partita.compiler.cost.collectives import axis_seconds, sent_bytes
from partita.compiler.cost.compute import memory_s
from partita.compiler.cost.moves import Kind, moves_of
from partita.compiler.cost.step import (
    Step,
    local_copies,
    step_wire_bytes,
)
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.layout import (
    check_placement,
)
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Broadcast, Placement, Sharding, Split
from partita.compiler.ir.tensor_type import TensorType

Price = tuple[float, int, int]
"""Seconds, wire bytes per rank, number of steps that do something."""

_Edge = tuple[Step, Price]

Universe = tuple[tuple[Sharding, ...], ...]
"""Per mesh axis, the shardings that a placement on the way may have there."""


@dataclass(frozen=True, slots=True)
class Steps:
    """A boxing: its steps, their seconds, and the bytes that a rank sends."""

    steps: tuple[Step, ...]
    seconds: float
    bytes: int


@lru_cache(maxsize=1 << 18)
def cheapest_steps(
    type: TensorType,
    source: Placement,
    target: Placement,
    mesh: Mesh,
    hardware: Hardware,
) -> Steps:
    """Return the cheapest boxing of a tensor of logical ``type``.

    >>> from partita.compiler.hardware.profile import load_hardware
    >>> t, mesh = TensorType.parse("f32[8, 4]"), Mesh(tp=2)
    >>> source, target = Placement.parse("P(sum)"), Placement.parse("B")
    >>> boxing = cheapest_steps(t, source, target, mesh, load_hardware("cpu-gloo"))
    >>> print(*boxing.steps, boxing.bytes)
    (P(sum),) -> (B,) by all_reduce 128

    Raises:
        BadPlacement: when source or target is illegal for the type on the mesh.
    """
    check_placement(type.shape, source, mesh)
    check_placement(type.shape, target, mesh)
    universe = _universe(type.shape, source, target, mesh)
    return _router(edges_of(type, mesh, hardware), universe).route(source, target)


def step_seconds(type: TensorType, step: Step, mesh: Mesh, hardware: Hardware) -> float:
    """Return the seconds of one step: its collective, and the copies around it."""
    wire, copies = step_wire_bytes(type, step, mesh), local_copies(type, step, mesh)
    return _seconds_of(Kind(step, wire, copies), mesh, hardware)


def step_sent_bytes(
    type: TensorType, step: Step, mesh: Mesh, hardware: Hardware
) -> int:
    """Return what the rank that sends most puts on the wire in a step."""
    wire = step_wire_bytes(type, step, mesh)
    return _sent_bytes(step, wire, mesh, hardware)


def _sent_bytes(step: Step, wire: int, mesh: Mesh, hardware: Hardware) -> int:
    if step.collective is None:
        return 0
    return sent_bytes(step.collective, wire, mesh, step.axis, hardware)


def _seconds_of(kind: Kind, mesh: Mesh, hardware: Hardware) -> float:
    """Return the seconds of one step of a kind."""
    local_s = _local_seconds(kind.copies, hardware)
    collective, axis = kind.step.collective, kind.step.axis
    if collective is None:
        return local_s
    return axis_seconds(collective, kind.wire, mesh, axis, hardware) + local_s


def copies_seconds(
    type: TensorType, step: Step, mesh: Mesh, hardware: Hardware
) -> float:
    """Return the seconds of the copies that a step makes on a rank by itself."""
    return _local_seconds(local_copies(type, step, mesh), hardware)


def _local_seconds(copies: tuple[int, int], hardware: Hardware) -> float:
    num_copies, copied_bytes = copies
    device = hardware.device
    return num_copies * device.launch_s + memory_s(copied_bytes, device)


def _universe(
    shape: tuple[int, ...], source: Placement, target: Placement, mesh: Mesh
) -> Universe:
    """Return the shardings to consider on each axis, in a fixed order."""
    ends = zip(source.shardings, target.shardings, strict=True)
    return tuple([_on_axis(shape, mesh, axis, *own) for axis, own in enumerate(ends)])


@lru_cache(maxsize=1 << 14)
def _on_axis(
    shape: tuple[int, ...], mesh: Mesh, axis: int, source: Sharding, target: Sharding
) -> tuple[Sharding, ...]:
    options = {*base_shardings(shape, mesh, axis), source, target}
    return tuple(sorted(options, key=str))


def base_shardings(
    shape: tuple[int, ...], mesh: Mesh, axis: int
) -> tuple[Sharding, ...]:
    """Return what any boxing may pass through on an axis: ``B``, and near even splits.

    Of uneven ones those whose padding, ``-n % size``, is at most a quarter of the dim.
    """
    size = mesh.sizes[axis]
    near = (dim for dim, n in enumerate(shape) if n >= size and 4 * (-n % size) <= n)
    return (Broadcast(), *((Split(dim) for dim in near) if size > 1 else ()))


@lru_cache(maxsize=1 << 12)
def edges_of(type: TensorType, mesh: Mesh, hardware: Hardware) -> Edges:
    """Return the steps between the placements of a tensor."""
    return Edges(type, mesh, hardware)


class Edges:
    """The steps between one tensor's placements with their prices on one machine."""

    def __init__(self, type: TensorType, mesh: Mesh, hardware: Hardware) -> None:
        self.moves = moves_of(type, mesh)
        self._hardware = hardware
        self._prices: list[Price] = []

    @property
    def prices(self) -> list[Price]:
        """What each kind of steps costs, of those that were asked for so far."""
        moves = self.moves
        for kind in moves.kinds[len(self._prices) :]:
            seconds = _seconds_of(kind, moves.mesh, self._hardware)
            sent = _sent_bytes(kind.step, kind.wire, moves.mesh, self._hardware)
            self._prices.append((seconds, sent, 1))
        return self._prices

    def get(self, before: Placement, axis: int, sharding: Sharding) -> _Edge | None:
        """Return the step that gives ``axis`` another sharding, if there is one."""
        move = self.moves.get(before, axis, sharding)
        return None if move is None else (move.step, self.prices[move.kind])


@lru_cache(maxsize=1 << 14)
def _router(edges: Edges, universe: Universe) -> _Router:
    return _Router(edges, universe)


class _Router:
    """The graph of one tensor's placements; edges and searches are made on demand."""

    def __init__(self, edges: Edges, universe: Universe) -> None:
        self.universe = universe
        self._all_edges = edges
        self._edges: dict[Placement, list[_Edge]] = {}
        self._searches: dict[Placement, _Search] = {}

    def route(self, source: Placement, target: Placement) -> Steps:
        search = self._searches.get(source)
        if search is None:
            search = self._searches[source] = _Search(self, source)
        (seconds, num_bytes, _), steps = search.reach(target)
        return Steps(steps, seconds, num_bytes)

    def edges(self, before: Placement) -> list[_Edge]:
        """Return the steps that leave ``before``, with their prices."""
        found = self._edges.get(before)
        if found is None:
            edges = (
                self._all_edges.get(before, axis, sharding)
                for axis, options in enumerate(self.universe)
                for sharding in options
                if sharding != before.shardings[axis]
            )
            found = self._edges[before] = [edge for edge in edges if edge is not None]
        return found


class _Search:
    """Dijkstra from one placement; stops at each target and goes on from there."""

    def __init__(self, router: _Router, source: Placement) -> None:
        self._router = router
        self._ties = count()  # equal prices leave the heap in the order they came
        self._heap: list[tuple[Price, int, Placement, Step | None]] = [
            ((0.0, 0, 0), next(self._ties), source, None)
        ]
        self._settled: dict[Placement, tuple[Price, Step | None]] = {}

    def reach(self, target: Placement) -> tuple[Price, tuple[Step, ...]]:
        """Return the price of ``target`` and the steps that lead there."""
        while target not in self._settled:
            price, _, placement, step = heapq.heappop(self._heap)
            if placement in self._settled:
                continue
            self._settled[placement] = price, step
            for edge, (seconds, num_bytes, num_steps) in self._router.edges(placement):
                if edge.after not in self._settled:
                    total = (
                        price[0] + seconds,
                        price[1] + num_bytes,
                        price[2] + num_steps,
                    )
                    entry = total, next(self._ties), edge.after, edge
                    heapq.heappush(self._heap, entry)
        return self._settled[target][0], self._path(target)

    def _path(self, target: Placement) -> tuple[Step, ...]:
        steps: list[Step] = []
        step = self._settled[target][1]
        while step is not None:
            steps.append(step)
            step = self._settled[step.before][1]
        return tuple(reversed(steps))
