"""Seconds of one op on one device: the roofline and a fixed cost.

Source: Williams, Waterman, Patterson, "Roofline: An Insightful Visual Performance
Model for Multicore Architectures", CACM 52(4), 2009. That products are computed in
tiles, and tiles in waves: NVIDIA, "Matrix Multiplication Background User's Guide"
(docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from partita.compiler.cost.arithmetic import NUMBERS, Arithmetic, Real
from partita.compiler.hardware.device import Device, OpRate
from partita.compiler.ir.tensor_type import TensorType

_ANY = OpRate()  # an op of which a profile says nothing


@dataclass(frozen=True, slots=True)
class Product:
    """``batch`` products ``[m, k] x [k, n]`` of one rank, ``count`` times over."""

    m: Real
    n: Real
    k: Real
    batch: Real = 1
    count: Real = 1


def op_seconds(
    flops: Real,
    num_bytes: Real,
    dtype: torch.dtype,
    device: Device,
    op: str = "",
    product: Product | None = None,
    on: Arithmetic = NUMBERS,
) -> Real:
    """Return the seconds of an op that computes ``flops`` and touches ``num_bytes``.

    An op that does neither, a view, is free.

    Args:
        flops: of one rank's share.
        num_bytes: read and written.
        dtype: that it computes in.
        device: one rank's; it may know the op by itself.
        op: its name, as torch prints it.
        product: the matmul that the flops are, if they are one.
        on: the arithmetic of the sizes.

    >>> from partita.compiler.hardware.profile import load_hardware
    >>> op_seconds(0, 0, torch.float32, load_hardware("cpu-gloo").device)
    0.0
    """
    if not flops and not num_bytes:
        return 0.0
    known = device.ops.get(op, _ANY)
    own_flops_per_s = known.flops_per_s.get(short_name(dtype))
    if own_flops_per_s is not None:
        busy_s = flops / own_flops_per_s
    elif product is not None:
        busy_s = product_s(product, dtype, device, on)
    else:
        busy_s = flops / peak_flops_per_s(dtype, device)
    moving_s = memory_s(num_bytes, device, on)
    if known.bytes_per_s is not None:
        moving_s = on.greatest(moving_s, num_bytes / known.bytes_per_s)
    return on.greatest(busy_s, moving_s) + device.launch_s


def product_s(
    product: Product, dtype: torch.dtype, device: Device, on: Arithmetic = NUMBERS
) -> Real:
    """Return the seconds that a matmul computes, by the device's fastest kernel.

    >>> from partita.compiler.hardware.profile import load_hardware
    >>> device = load_hardware("h100-dgx").device
    >>> whole = product_s(Product(4096, 4096, 4096), torch.bfloat16, device)
    >>> thin = product_s(Product(4096, 128, 4096), torch.bfloat16, device)
    >>> 1.1 < 32 * thin / whole < 1.3  # its tiles do not fill a wave
    True
    """
    curve = device.matmul
    m, n = product.m + curve.half_m, product.n + curve.half_n
    found: list[Real] = []
    for tile in curve.tiles:
        tiles = product.batch * on.up(m, tile.m) * on.up(n, tile.n)
        for split in curve.splits:
            waves = on.up(tiles * split, curve.units)
            depth = product.k / split + curve.half_k_bytes / dtype.itemsize
            per_wave = curve.units * 2 * tile.m * tile.n * depth
            found.append(waves * per_wave / tile.efficiency)
    return product.count * on.least(*found) / peak_flops_per_s(dtype, device)


def memory_s(num_bytes: Real, device: Device, on: Arithmetic = NUMBERS) -> Real:
    """Return the seconds that reading and writing ``num_bytes`` in all takes."""
    caches = tuple((1 / cache.bytes_per_s, cache.bytes) for cache in device.caches)
    return num_bytes * on.first(num_bytes, caches, 1 / device.memory_bytes_per_s)


def peak_flops_per_s(dtype: torch.dtype, device: Device) -> Real:
    """Return the peak for ``dtype``; that of f32 where the profile names none."""
    return device.flops_per_s.get(short_name(dtype), device.flops_per_s["f32"])


@cache
def short_name(dtype: torch.dtype) -> str:
    """Return what profiles and types call a dtype: ``f32``, ``bf16``."""
    return str(TensorType((), dtype)).removesuffix("[]")
