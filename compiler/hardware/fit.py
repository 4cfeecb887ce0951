"""A profile of a machine from what was measured of it, with the fit's errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod, sqrt
from statistics import median

from partita.compiler.errors import BadMesh
from partita.compiler.hardware.device import Cache, Device, OpRate
from partita.compiler.hardware.fit_links import fit_lines, line_error
from partita.compiler.hardware.fit_matmul import (
    DTYPES,
    ONE_KERNEL,
    fit_matmuls,
    gpu_curve,
    matmul_error,
)
from partita.compiler.hardware.links import CollectiveCost, CollectiveKind, Link
from partita.compiler.hardware.profile import Hardware
from partita.compiler.hardware.samples import (
    CollectiveSample,
    MatmulSample,
    Measured,
    MemorySample,
    OpSample,
)
from partita.compiler.ir.mesh import Mesh

_ALIKE = 0.15  # rates that differ by less than this are one
_MEMORY_BOUND = 0.6  # a matmul whose memory takes this share tells of memory


def fit_hardware(measured: Measured, mesh: Mesh, name: str) -> Hardware:
    """Return the profile that predicts what was measured on the ranks of ``mesh``.

    Raises:
        BadMesh: when no axis of the mesh has two ranks.
    """
    errors: dict[str, float] = {}
    device = _device(measured, errors)
    links = _links(measured.collectives, mesh, errors)
    busy = f"all {mesh.size} ranks busy at once"
    return Hardware(
        name=name,
        source=f"partita calibrate on {measured.device}, mesh {mesh}",
        device=device,
        links=links,
        devices_per_node=measured.devices_per_node,
        nodes=max(1, mesh.size // measured.devices_per_node),
        sources={
            "device": f"measured, {busy}: medians over rounds, means over ranks",
            "device.memory_bytes": "the machine's memory, an equal part for each rank",
            "links": f"measured on the groups of mesh {mesh}, {busy}",
            "nodes": "the ranks that started",
            "devices_per_node": "the ranks that started",
        },
        errors=errors,
    )


def axes_to_measure(mesh: Mesh) -> tuple[int, ...]:
    """Return the axes of a mesh whose groups have links to measure.

    Raises:
        BadMesh: when there is none.
    """
    axes = tuple(axis for axis in range(mesh.ndim) if mesh.sizes[axis] > 1)
    if not axes:
        raise BadMesh(
            f"mesh {mesh} has no axis of two ranks, so that there is no link to "
            "measure; want e.g. --mesh tp=2"
        )
    return axes


def _device(measured: Measured, errors: dict[str, float]) -> Device:
    launch_s = measured.launch_s
    memory, caches = _memory(measured.memory, launch_s)
    bare = Device(
        kind=measured.kind,
        flops_per_s={"f32": 1.0},
        memory_bytes_per_s=memory,
        memory_bytes=measured.memory_bytes,
        launch_s=launch_s,
        caches=caches,
    )
    errors["device.memory_bytes_per_s"] = median(
        abs(_moving_s(sample.num_bytes, bare) / sample.seconds - 1)
        for sample in measured.memory
    )
    computing = [s for s in measured.matmuls if not _is_memory_bound(s, bare)]
    is_gpu = measured.kind == "cuda"
    start = gpu_curve(measured.units) if is_gpu else ONE_KERNEL
    curve, peaks = fit_matmuls(computing, start, launch_s)
    peaks.setdefault("f32", max(peaks.values()))
    device = replace(bare, flops_per_s=peaks, matmul=curve)
    errors["device.matmul"] = matmul_error(computing, device)
    return replace(device, ops=_op_rates(measured.ops, device))


def _memory(
    samples: Sequence[MemorySample], launch_s: float
) -> tuple[float, tuple[Cache, ...]]:
    """Return the bandwidth of the largest sample, and caches for the smaller ones."""
    rates: list[tuple[int, float]] = []
    for sample in sorted(samples, key=lambda s: s.num_bytes):
        busy_s = max(sample.seconds - launch_s, 0.1 * sample.seconds)
        rates.append((sample.num_bytes, sample.num_bytes / busy_s))
    caches: list[Cache] = []
    level = [rates[0]]
    for (size, rate), (above, _) in zip(rates[1:], rates[:-1], strict=True):
        mean = median(r for _, r in level)
        if abs(rate / mean - 1) > _ALIKE:
            caches.append(Cache(int(sqrt(size * above)), mean))
            level = []
        level.append((size, rate))
    return median(r for _, r in level), tuple(caches)


def _moving_s(num_bytes: int, device: Device) -> float:
    rates = (c.bytes_per_s for c in device.caches if num_bytes <= c.bytes)
    return num_bytes / next(rates, device.memory_bytes_per_s) + device.launch_s


def _is_memory_bound(sample: MatmulSample, device: Device) -> bool:
    elements = sample.m * sample.k + sample.k * sample.n + sample.m * sample.n
    num_bytes = elements * sample.batch * DTYPES[sample.dtype].itemsize
    return _moving_s(num_bytes, device) > _MEMORY_BOUND * sample.seconds


def _op_rates(samples: Sequence[OpSample], device: Device) -> dict[str, OpRate]:
    """Return what ops reach that are slower than memory, or that compute."""
    found: dict[str, OpRate] = {}
    for sample in samples:
        busy_s = max(sample.seconds - device.launch_s, 0.1 * sample.seconds)
        if sample.flops:
            found[sample.op] = OpRate({sample.dtype: sample.flops / busy_s})
        elif (1 - _ALIKE) * sample.seconds > _moving_s(sample.num_bytes, device):
            found[sample.op] = OpRate(bytes_per_s=sample.num_bytes / busy_s)
    return found


def _links(
    samples: Sequence[CollectiveSample], mesh: Mesh, errors: dict[str, float]
) -> tuple[Link, ...]:
    """Return a link for each axis of two ranks or more, the widest joining all."""
    links: list[Link] = []
    for axis in axes_to_measure(mesh):
        name = mesh.names[axis]
        costs = {
            kind: _cost(samples, name, kind, mesh.sizes[axis], errors)
            for kind in CollectiveKind
        }
        ranks = prod(mesh.sizes[axis:]) if links else None
        links.append(Link(name, ranks, costs))
    return tuple(links)


def _cost(
    samples: Sequence[CollectiveSample],
    axis: str,
    kind: CollectiveKind,
    size: int,
    errors: dict[str, float],
) -> CollectiveCost:
    points = [
        (float(s.wire_bytes), s.seconds)
        for s in samples
        if s.axis == axis and s.kind is kind
    ]
    lines = fit_lines(points)
    errors[f"links.{axis}.costs.{kind.value}"] = line_error(points, lines)
    num_steps = (2 if kind is CollectiveKind.ALL_REDUCE else 1) * (size - 1)
    first, *others = (CollectiveCost(start_s / num_steps, r) for start_s, r in lines)
    return replace(first, others=tuple(others))
