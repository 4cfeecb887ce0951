"""Measure the machine that runs this: matmuls, memory, single ops, collectives.

All ranks do the same at the same time, as in training: cores that share memory or
power are slower side by side. Trials take turns, round after round, so that a
disturbance hits all of them alike; medians over rounds count. What is fitted to them
stands in ``compiler/hardware/fit.py``.

On CPUs a collective takes longer in the midst of computing than one after another: its
threads slept meanwhile, and the ranks come to it at different times. There it is
measured between matmuls, less what these take by themselves.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import torch
import torch.distributed as dist

from partita.compiler.cost.collectives import wire_bytes
from partita.compiler.hardware.fit import axes_to_measure
from partita.compiler.hardware.fit_matmul import DTYPES
from partita.compiler.hardware.links import CollectiveKind
from partita.compiler.hardware.samples import (
    CollectiveSample,
    MatmulSample,
    Measured,
    MemorySample,
    OpSample,
)
from partita.compiler.ir.mesh import Mesh
from partita.runtime.agree import everyone_tells
from partita.runtime.groups import Groups, bind
from partita.runtime.heap import keep_freed_memory
from partita.runtime.sampled_ops import sampled_ops, touched_bytes

aten = torch.ops.aten
c10d = torch.ops._c10d_functional


Sizes = tuple[int, int, int, int]
"""The m, n, k and batch of a matmul."""

Call = Callable[[], Any]
"""What is timed."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured.

    Attributes:
        rounds: how often each trial is run.
        least_s: for how long a trial is repeated in a round.
        sizes: of matmuls, timed in the device's main dtype.
        other_sizes: the same for the other dtypes.
        memory_bytes: of the tensors that are added.
        payload_bytes: of the collectives, what a rank holds whole.
        between: the matmul that a rank does before each collective, if any.
    """

    rounds: int
    least_s: float
    sizes: tuple[Sizes, ...]
    other_sizes: tuple[Sizes, ...]
    memory_bytes: tuple[int, ...]
    payload_bytes: tuple[int, ...]
    between: Sizes | None


_CPU_SIZES = (
    (64, 64, 64, 1),
    (128, 128, 128, 1),
    (256, 256, 256, 1),
    (512, 512, 512, 1),
    (1024, 512, 512, 1),
    (512, 512, 2048, 1),
    (512, 2048, 512, 1),
    (1024, 1024, 1024, 1),
    (1024, 2048, 512, 1),
    (32, 1024, 1024, 1),
    (1024, 32, 1024, 1),
    (1024, 1024, 32, 1),
    (128, 128, 64, 16),
)
_GPU_SIZES = (
    *((m, 2 * m, m, 1) for m in (512, 1024, 2048, 4096)),
    *((m, m, m, 1) for m in (1024, 1536, 2048, 3072, 4096, 8192)),
    (8192, 1024, 4096, 1),
    (8192, 4096, 1024, 1),
    (1024, 4096, 8192, 1),
    (512, 4096, 4096, 1),
    (2048, 2048, 128, 16),
)
_CPU_BETWEEN = (128, 1024, 1024, 1)  # some milliseconds, as between those of layers
_CPU_OTHER = ((256, 256, 256, 1),)
_GPU_OTHER = ((2048, 2048, 2048, 1), (4096, 4096, 4096, 1))
_MEBI = 1 << 20


def effort(kind: str, is_quick: bool) -> Effort:
    """Return what to measure on a kind of device."""
    is_cpu = kind == "cpu"
    sizes = _CPU_SIZES if is_cpu else _GPU_SIZES
    scale = 1 if is_cpu else 8
    memory = tuple(scale * n for n in (1 << 16, 1 << 18, _MEBI, 4 * _MEBI, 16 * _MEBI))
    payload = tuple(4**power for power in range(3, 13))
    between = _CPU_BETWEEN if is_cpu else None
    if is_quick:
        return Effort(3, 0.0005, sizes[::2], (), memory[1::2], payload[::2], between)
    longer = memory[-1] * 4
    more = 4**13 if is_cpu else 4**14
    other = _CPU_OTHER if is_cpu else _GPU_OTHER
    return Effort(9, 0.002, sizes, other, (*memory, longer), (*payload, more), between)


def measure(mesh: Mesh, device: str | None, is_quick: bool) -> Measured:
    """Measure on this rank and all others of ``mesh``; every rank gets the result."""
    groups = bind(mesh, device)
    kind = groups.device.type
    if kind == "cpu":
        keep_freed_memory()  # as a step does
    todo = effort(kind, is_quick)
    dtype = "f32" if kind == "cpu" else "bf16"
    trials = Trials(groups.device, todo)
    launch = trials.add(_launch(groups.device))
    matmuls = [
        (name, size, trials.add(_matmul(groups.device, DTYPES[name], *size)))
        for name, sizes in _by_dtype(dtype, todo).items()
        for size in sizes
    ]
    memory = [(3 * n, trials.add(_add(groups.device, n))) for n in todo.memory_bytes]
    rows = (256 if is_quick else 1024) * (1 if kind == "cpu" else 8)
    ops = list(sampled_ops(rows, 2048, groups.device))
    op_trials = [trials.add(op) for op in ops]
    before = (
        None
        if todo.between is None
        else _matmul(groups.device, DTYPES[dtype], *todo.between)
    )
    collectives = [
        (
            mesh.names[axis],
            kind_,
            wire,
            trials.add(call, 1 if wire > _MEBI else 4, before),
        )
        for axis in axes_to_measure(mesh)
        for kind_, wire, call in _collectives(groups, axis, todo)
    ]
    seconds = trials.run()
    return Measured(
        kind="cpu" if kind == "cpu" else "cuda",
        device=_device_name(groups.device),
        units=_units(groups.device),
        memory_bytes=_memory_bytes(groups.device),
        devices_per_node=int(os.environ.get("LOCAL_WORLD_SIZE", str(mesh.size))),
        launch_s=seconds[launch],
        matmuls=tuple(
            MatmulSample(name, *size, seconds[trial]) for name, size, trial in matmuls
        ),
        memory=tuple(MemorySample(n, seconds[trial]) for n, trial in memory),
        ops=tuple(
            OpSample(op.name, dtype, op.flops, touched_bytes(op, op()), seconds[trial])
            for op, trial in zip(ops, op_trials, strict=True)
        ),
        collectives=tuple(
            CollectiveSample(axis, kind_, wire, seconds[trial])
            for axis, kind_, wire, trial in collectives
        ),
    )


class Trials:
    """What is timed, in turns."""

    def __init__(self, device: torch.device, todo: Effort) -> None:
        self._device = device
        self._todo = todo
        self._calls: list[tuple[Call, int, Call | None]] = []

    def add(self, call: Call, repeats: int = 0, before: Call | None = None) -> int:
        """Take up a trial and return its number.

        ``repeats`` is stated where ranks must agree on it, else found by timing. What
        is done ``before`` each call is timed too, and taken off.
        """
        call()
        self._calls.append((call, repeats or self._enough(call), before))
        return len(self._calls) - 1

    def _enough(self, call: Call) -> int:
        once_s = self._time(call, 1)
        return min(1000, max(1, int(self._todo.least_s / max(once_s, 1e-7))))

    def run(self) -> list[float]:
        """Return the seconds of each trial: medians of rounds, means over ranks."""
        times: list[list[float]] = [[] for _ in self._calls]
        for _ in range(self._todo.rounds):
            for (call, repeats, before), found in zip(self._calls, times, strict=True):
                dist.barrier()
                alone_s = self._time(call, repeats)
                inside_s = (
                    0.0 if before is None else self._inside(call, repeats, before)
                )
                found.append(max(alone_s, inside_s))
        told = everyone_tells([median(found) for found in times])
        return [fmean(seconds) for seconds in zip(*told, strict=True)]

    def _inside(self, call: Call, repeats: int, before: Call) -> float:
        """Return what a call adds to the time of what comes before it."""

        def both() -> None:
            before()
            call()

        dist.barrier()
        before_s = self._time(before, repeats)
        dist.barrier()
        return self._time(both, repeats) - before_s

    def _time(self, call: Call, repeats: int) -> float:
        self._settle()
        started = time.perf_counter()
        for _ in range(repeats):
            call()
        self._settle()
        return (time.perf_counter() - started) / repeats

    def _settle(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _by_dtype(main: str, todo: Effort) -> dict[str, Sequence[Sizes]]:
    others = {name: todo.other_sizes for name in DTYPES if name != main}
    return {main: todo.sizes, **others}


def _launch(device: torch.device) -> Callable[[], Any]:
    x = torch.ones(4, device=device)
    return lambda: aten.add.Tensor(x, x)


def _matmul(
    device: torch.device, dtype: torch.dtype, m: int, n: int, k: int, batch: int
) -> Callable[[], Any]:
    if batch == 1:
        a = torch.rand(m, k, device=device).to(dtype)
        b = torch.rand(k, n, device=device).to(dtype)
        return lambda: aten.mm.default(a, b)
    a = torch.rand(batch, m, k, device=device).to(dtype)
    b = torch.rand(batch, k, n, device=device).to(dtype)
    return lambda: aten.bmm.default(a, b)


def _add(device: torch.device, num_bytes: int) -> Callable[[], Any]:
    """Return an addition of two tensors of ``num_bytes``."""
    x = torch.rand(num_bytes // 4, device=device)
    y = torch.rand_like(x)
    return lambda: aten.add.Tensor(x, y)


def _collectives(
    groups: Groups, axis: int, todo: Effort
) -> list[tuple[CollectiveKind, int, Callable[[], Any]]]:
    """Return every collective at every size on the groups of ``axis``."""
    size = groups.mesh.sizes[axis]
    group = groups.names[f"stage0/{groups.mesh.names[axis]}"]
    found: list[tuple[CollectiveKind, int, Callable[[], Any]]] = []
    for num_bytes in todo.payload_bytes:
        numel = max(num_bytes // 4 // size, 1)
        whole = torch.ones(numel * size, device=groups.device)
        part = torch.ones(numel, device=groups.device)
        splits = [numel] * size
        for kind, x, op, args in (
            (CollectiveKind.ALL_REDUCE, whole, c10d.all_reduce, ("sum",)),
            (CollectiveKind.ALL_GATHER, part, c10d.all_gather_into_tensor, (size,)),
            (
                CollectiveKind.REDUCE_SCATTER,
                whole,
                c10d.reduce_scatter_tensor,
                ("sum", size),
            ),
            (
                CollectiveKind.ALL_TO_ALL,
                whole,
                c10d.all_to_all_single,
                (splits, splits),
            ),
        ):
            wire = wire_bytes(kind, x.numel() * x.element_size(), size)
            found.append((kind, wire, _called(op, x, args, group)))
    return found


def _called(
    op: Any, x: torch.Tensor, args: tuple[Any, ...], group: str
) -> Callable[[], Any]:
    return lambda: c10d.wait_tensor(op(x, *args, group))


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU with {os.cpu_count()} cores, {torch.get_num_threads()} threads a rank"


def _units(device: torch.device) -> int:
    if device.type == "cpu":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


def _memory_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    num_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return total // num_ranks
