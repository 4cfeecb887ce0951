"""The curve of matmuls by size, from measured ones.

One figure of the curve at a time is moved to the best of some values, over and over
until none improves; the speed of each dtype follows from the curve.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import log
from statistics import fmean, median

import torch

from partita.compiler.cost.compute import Product, product_s
from partita.compiler.hardware.device import Device, MatmulCurve, Tile
from partita.compiler.hardware.samples import MatmulSample

ONE_KERNEL = MatmulCurve(units=1, tiles=(Tile(1, 1, 1.0),))
"""What a CPU's curve starts from: its speed grows smoothly with the sizes."""

GPU_TILES = (
    Tile(256, 128, 1.0),
    Tile(128, 256, 1.0),
    Tile(128, 128, 0.9),
    Tile(128, 64, 0.75),
    Tile(64, 128, 0.75),
    Tile(64, 64, 0.6),
)
"""Tiles of the kernels of cuBLAS: NVIDIA's user's guide on matmuls, "Tile sizes"."""

DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
}
"""The dtypes that samples may be of, by the name they have in a profile."""

_HALVES = (0.0, *(2.0**power for power in range(11)))
_PULL = 0.02
_EFFICIENCIES = tuple(percent / 100 for percent in range(30, 101, 5))


def gpu_curve(units: int) -> MatmulCurve:
    """Return what the curve of a GPU with so many multiprocessors starts from."""
    return MatmulCurve(units, GPU_TILES, splits=(1, 2, 4), half_k_bytes=128.0)


def fit_matmuls(
    samples: Sequence[MatmulSample], start: MatmulCurve, launch_s: float = 0.0
) -> tuple[MatmulCurve, dict[str, float]]:
    """Return the curve nearest to the samples, and FLOP per second by dtype.

    Args:
        samples: of one device, none of them bound by memory; all dtypes share a curve.
        start: a smooth curve of one kernel, or the tiles of several.
        launch_s: what each sample's seconds hold besides the product.
    """
    busy = [(s, max(s.seconds - launch_s, 0.1 * s.seconds)) for s in samples]
    curve, error = start, _spread(start, busy, start)
    while True:
        before = error
        for options in range(_num_figures(start)):
            for tried in _changed(curve, options):
                spread = _spread(tried, busy, start)
                if spread < error - 1e-9:
                    curve, error = tried, spread
        if error > before - 1e-4:
            return curve, _peaks(curve, busy)


def matmul_error(samples: Sequence[MatmulSample], device: Device) -> float:
    """Return the median relative error of the device's curve on the samples."""
    errors: list[float] = []
    for sample in samples:
        peak = device.flops_per_s.get(sample.dtype, device.flops_per_s["f32"])
        seconds = device.launch_s + _work(sample, device.matmul) / peak
        errors.append(abs(seconds / sample.seconds - 1))
    return median(errors)


def _num_figures(curve: MatmulCurve) -> int:
    return 3 if len(curve.tiles) == 1 else 1 + len(_shapes(curve))


def _shapes(curve: MatmulCurve) -> list[tuple[int, int]]:
    """Return the tiles that differ by more than which side is longer."""
    return sorted({(max(t.m, t.n), min(t.m, t.n)) for t in curve.tiles}, reverse=True)


def _changed(curve: MatmulCurve, figure: int) -> Iterator[MatmulCurve]:
    """Yield the curve with other values of one of its figures.

    The largest tile is what the others' efficiency is measured by.
    """
    if len(curve.tiles) == 1:
        name = ("half_m", "half_n", "half_k_bytes")[figure]
        yield from (replace(curve, **{name: half}) for half in _HALVES)
    elif figure == 0:
        yield from (replace(curve, half_k_bytes=half) for half in _HALVES)
    elif figure > 1:
        sides = set(_shapes(curve)[figure - 1])
        for efficiency in _EFFICIENCIES:
            tiles = tuple(
                replace(t, efficiency=efficiency) if {t.m, t.n} == sides else t
                for t in curve.tiles
            )
            yield replace(curve, tiles=tiles)


_Busy = Sequence[tuple[MatmulSample, float]]


def _work(sample: MatmulSample, curve: MatmulCurve) -> float:
    """Return the FLOP that the product would be at the best speed."""
    rates = {"f32": 1.0}
    device = Device("cpu", rates, 1.0, 1, 0.0, matmul=curve)
    product = Product(sample.m, sample.n, sample.k, sample.batch)
    return product_s(product, DTYPES[sample.dtype], device)


def _peaks(curve: MatmulCurve, busy: _Busy) -> dict[str, float]:
    rates: dict[str, list[float]] = {}
    for sample, seconds in busy:
        rates.setdefault(sample.dtype, []).append(_work(sample, curve) / seconds)
    return {dtype: median(found) for dtype, found in rates.items()}


def _spread(curve: MatmulCurve, busy: _Busy, start: MatmulCurve) -> float:
    """Return the mean distance from the samples, in logarithms.

    A tile that hardly any sample tells of stays near where it started.
    """
    peaks = _peaks(curve, busy)
    moved = zip(curve.tiles, start.tiles, strict=True)
    return _PULL * sum(abs(a.efficiency - b.efficiency) for a, b in moved) + fmean(
        abs(log(_work(sample, curve) / peaks[sample.dtype] / seconds))
        for sample, seconds in busy
    )
