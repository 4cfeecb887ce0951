"""Seconds of one op on one device: the roofline and a fixed cost.

Source: Williams, Waterman, Patterson, "Roofline: An Insightful Visual Performance
Model for Multicore Architectures", CACM 52(4), 2009.
"""

from __future__ import annotations

import torch

from partita.compiler.hardware.profile import Device
from partita.compiler.ir.tensor_type import TensorType


def op_seconds(
    flops: float, num_bytes: float, dtype: torch.dtype, device: Device
) -> float:
    """Return the seconds of an op that computes ``flops`` and touches ``num_bytes``.

    An op that does neither, a view, is free.

    >>> from partita.compiler.hardware.profile import load_hardware
    >>> op_seconds(0, 0, torch.float32, load_hardware("cpu-gloo").device)
    0.0
    """
    if not flops and not num_bytes:
        return 0.0
    busy_s = max(flops / peak_flops_per_s(dtype, device), memory_s(num_bytes, device))
    return busy_s + device.launch_s


def memory_s(num_bytes: float, device: Device) -> float:
    """Return the seconds that reading and writing ``num_bytes`` in all takes."""
    return num_bytes / device.memory_bytes_per_s


def peak_flops_per_s(dtype: torch.dtype, device: Device) -> float:
    """Return the peak for ``dtype``; that of f32 where the profile names none."""
    short = str(TensorType((), dtype)).removesuffix("[]")
    return device.flops_per_s.get(short, device.flops_per_s["f32"])
