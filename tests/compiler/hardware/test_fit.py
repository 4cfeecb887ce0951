"""What is fitted to a machine of known figures is that machine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partita.compiler.cost.collectives import (
    CollectiveKind,
    axis_seconds,
    is_exchanged,
    seconds,
    wire_bytes,
)
from partita.compiler.cost.compute import Product, memory_s, op_seconds, product_s
from partita.compiler.errors import BadMesh
from partita.compiler.hardware.device import Device, MatmulCurve, Tile
from partita.compiler.hardware.fit import fit_hardware
from partita.compiler.hardware.fit_links import fit_lines, line_error, line_seconds
from partita.compiler.hardware.fit_matmul import (
    DTYPES,
    ONE_KERNEL,
    fit_matmuls,
    gpu_curve,
    matmul_error,
)
from partita.compiler.hardware.profile import Hardware
from partita.compiler.hardware.samples import (
    CollectiveSample,
    MatmulSample,
    Measured,
    MemorySample,
    OpSample,
)
from partita.compiler.ir.mesh import Mesh

SIZES = tuple(4.0**power for power in range(2, 14))
LAUNCH_S = 3e-6
REDUCE, EXCHANGE = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_TO_ALL


@given(
    starts=st.tuples(st.floats(1e-6, 1e-5), st.floats(3e-5, 1e-4)),
    rates=st.tuples(st.floats(1e8, 1e9), st.floats(1e10, 1e11)),
)
def test_lines_that_cross_are_found(
    starts: tuple[float, float], rates: tuple[float, float]
) -> None:
    truth = tuple(zip(starts, rates, strict=True))
    points = [(size, line_seconds(truth, size)) for size in SIZES]
    assert line_error(points, fit_lines(points)) < 0.02


def test_one_line_stays_one() -> None:
    noise = random.Random(1)
    points = [(b, (1e-4 + b / 1e9) * noise.uniform(0.97, 1.03)) for b in SIZES]
    ((start_s, rate),) = fit_lines(points)
    assert start_s == pytest.approx(1e-4, rel=0.05)
    assert rate == pytest.approx(1e9, rel=0.05)


def test_line_never_falls() -> None:
    points = [(1.0, 5.0), (10.0, 4.0), (100.0, 3.0)]
    for start_s, rate in fit_lines(points):
        assert start_s > 0
        assert rate > 0


def matmuls(
    curve: MatmulCurve, rates: dict[str, float], spread: float = 0.0
) -> list[MatmulSample]:
    noise = random.Random(2)
    all_rates = {"f32": 1.0, **rates}
    device = Device("cuda", all_rates, 1e15, 1, LAUNCH_S, matmul=curve)
    found: list[MatmulSample] = []
    for dtype in rates:
        for m in (96, 512, 1000, 4096):
            for n in (128, 1500, 4096):
                for k in (64, 1024, 4096):
                    seconds = LAUNCH_S + product_s(
                        Product(m, n, k), DTYPES[dtype], device
                    )
                    seconds *= noise.uniform(1 - spread, 1 + spread)
                    found.append(MatmulSample(dtype, m, n, k, 1, seconds))
    return found


def test_smooth_curve_is_found() -> None:
    truth = MatmulCurve(1, (Tile(1, 1, 1.0),), half_m=4, half_n=16, half_k_bytes=256)
    rates = {"f32": 5e10, "bf16": 2e11}
    curve, peaks = fit_matmuls(matmuls(truth, rates), ONE_KERNEL, LAUNCH_S)
    assert curve == truth
    assert peaks == pytest.approx(rates)


def test_tiles_and_waves_are_found_through_noise() -> None:
    start = gpu_curve(108)
    tiles = tuple(
        replace(t, efficiency=0.55) if t.m * t.n == 64 * 64 else t for t in start.tiles
    )
    truth = replace(start, tiles=tiles, half_k_bytes=512.0)
    samples = matmuls(truth, {"bf16": 3e14}, spread=0.03)
    curve, peaks = fit_matmuls(samples, start, LAUNCH_S)
    device = Device("cuda", {"f32": 1.0, **peaks}, 1e15, 1, LAUNCH_S, matmul=curve)
    assert matmul_error(samples, device) < 0.03
    assert curve.half_k_bytes == 512.0
    assert peaks["bf16"] == pytest.approx(3e14, rel=0.05)
    # without waves it could not be
    flat, peaks = fit_matmuls(samples, ONE_KERNEL, LAUNCH_S)
    device = Device("cuda", {"f32": 1.0, **peaks}, 1e15, 1, LAUNCH_S, matmul=flat)
    assert matmul_error(samples, device) > 0.06


COSTS = {  # start and rate
    CollectiveKind.ALL_REDUCE: (2e-4, 2e9),
    CollectiveKind.ALL_GATHER: (1e-4, 1e9),
    CollectiveKind.REDUCE_SCATTER: (3e-4, 5e8),
    CollectiveKind.ALL_TO_ALL: (4e-4, 4e9),
}


def collectives(axes: Sequence[str]) -> list[CollectiveSample]:
    return [
        CollectiveSample(axis, kind, int(size), number * (start_s + size / rate))
        for number, axis in enumerate(axes, 1)
        for kind, (start_s, rate) in COSTS.items()
        for size in SIZES
    ]


def measured(axes: Sequence[str] = ("tp",)) -> Measured:
    truth = MatmulCurve(1, (Tile(1, 1, 1.0),), half_m=8.0)
    samples = matmuls(truth, {"f32": 5e10})
    memory = [(3 << 16, 6e10), (3 << 18, 6e10), (3 << 20, 2e10), (3 << 22, 1e10)]
    return Measured(
        kind="cpu",
        device="by hand",
        units=1,
        memory_bytes=1 << 30,
        devices_per_node=4,
        launch_s=LAUNCH_S,
        matmuls=tuple(samples),
        memory=tuple(MemorySample(n, LAUNCH_S + n / rate) for n, rate in memory),
        ops=(
            OpSample("aten.tanh.default", "f32", 0.0, 1 << 24, LAUNCH_S + 4e-3),
            OpSample("aten.clone.default", "f32", 0.0, 1 << 24, LAUNCH_S + 1.6e-3),
            OpSample("partita.attention.default", "f32", 1e8, 1 << 20, 5e-3 + LAUNCH_S),
        ),
        collectives=tuple(collectives(axes)),
    )


@pytest.fixture(scope="module")
def hardware() -> Hardware:
    return fit_hardware(measured(), Mesh(tp=4), "mine")


def test_profile_predicts_what_was_measured(hardware: Hardware) -> None:
    device = hardware.device
    for sample in measured().memory:
        found = op_seconds(0, sample.num_bytes, torch.float32, device)
        assert found == pytest.approx(sample.seconds, rel=1e-3)
    for sample in measured().ops:
        found = op_seconds(
            sample.flops, sample.num_bytes, torch.float32, device, sample.op
        )
        assert found == pytest.approx(sample.seconds, rel=0.06)
    for kind, (start_s, rate) in COSTS.items():
        legs = hardware.legs(Mesh(tp=4), 0)
        found = seconds(kind, 1 << 20, 4, legs)  # its own, whatever exchanges take
        assert found == pytest.approx(start_s + (1 << 20) / rate, rel=1e-3)
    assert max(hardware.errors.values()) < 0.01


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("seed", range(5))
def test_sums_are_exchanged_up_to_the_size_at_which_it_pays(
    size: int, seed: int
) -> None:
    """A machine whose measurements are a sixth off is right where it matters."""
    noise, mesh = random.Random(seed), Mesh(tp=size)
    truth = {REDUCE: (2.3e-3, 4e9), EXCHANGE: (7e-4, 4e8)}
    samples = [
        CollectiveSample(
            "tp", kind, int(wire), (start_s + wire / rate) * noise.uniform(0.85, 1.15)
        )
        for kind, (start_s, rate) in {**COSTS, **truth}.items()
        for wire in SIZES
    ]
    known = replace(measured(), collectives=tuple(samples))
    found = fit_hardware(known, mesh, "mine")
    ratios: list[float] = []
    for payload in (4 << power for power in range(0, 26, 2)):
        wire = wire_bytes(REDUCE, payload, size)
        sent = (size - 1) * payload
        passes_s = memory_s(2 * (size + 1) * payload, found.device) + 2 * LAUNCH_S
        own_s, exchanged_s = (
            start_s + num_bytes / rate
            for (start_s, rate), num_bytes in zip(
                truth.values(), (wire, sent), strict=True
            )
        )
        ratios.append((exchanged_s + passes_s) / own_s)
        if not 0.75 < ratios[-1] < 1.3:
            pays = is_exchanged(REDUCE, wire, mesh, 0, found)
            assert pays is (ratios[-1] < 1), f"{payload} bytes: {ratios[-1]:.2f}"
    assert min(ratios) < 0.5
    assert max(ratios) > 2


def test_profile_is_a_document_that_says_how_it_was_made(hardware: Hardware) -> None:
    document = hardware.to_dict()
    assert Hardware.from_dict(document) == hardware
    assert set(document["errors"]) == {
        "device.matmul",
        "device.memory_bytes_per_s",
        *(f"links.tp.costs.{kind}" for kind in CollectiveKind),
    }
    assert set(document["sources"]) >= {"device", "links"}
    assert (hardware.nodes, hardware.devices_per_node) == (1, 4)
    # an op as fast as memory has no entry of its own
    assert set(hardware.device.ops) == {
        "aten.tanh.default",
        "partita.attention.default",
    }


def test_each_axis_has_a_link_of_its_own() -> None:
    mesh = Mesh(dp=2, one=1, tp=2)
    found = fit_hardware(measured(("dp", "tp")), mesh, "mine")
    assert [(link.name, link.ranks) for link in found.links] == [
        ("dp", None),
        ("tp", 2),
    ]
    assert found.link(mesh, 0).name == "dp"
    assert found.link(mesh, 2).name == "tp"
    slow = axis_seconds(CollectiveKind.ALL_REDUCE, 1 << 20, mesh, 2, found)
    fast = axis_seconds(CollectiveKind.ALL_REDUCE, 1 << 20, mesh, 0, found)
    assert slow == pytest.approx(2 * fast)


def test_mesh_of_one_rank_has_no_links() -> None:
    with pytest.raises(BadMesh, match="no axis of two ranks"):
        fit_hardware(measured(()), Mesh(tp=1), "mine")
