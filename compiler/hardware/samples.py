"""What was measured of a machine, before anything is fitted to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from partita.compiler.hardware.links import CollectiveKind


@dataclass(frozen=True, slots=True)
class MatmulSample:
    """Seconds of ``batch`` products ``[m, k] x [k, n]``, its launch included."""

    dtype: str
    m: int
    n: int
    k: int
    batch: int
    seconds: float


@dataclass(frozen=True, slots=True)
class MemorySample:
    """Seconds of an op that touches ``num_bytes`` in all and computes little."""

    num_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class OpSample:
    """Seconds of one op. ``flops`` is 0 for one that memory ought to bound."""

    op: str
    dtype: str
    flops: float
    num_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CollectiveSample:
    """Seconds of a collective on all groups of a mesh axis at once.

    ``wire_bytes`` are what a rank sends, as ``compiler/cost/collectives.py`` counts.
    """

    axis: str
    kind: CollectiveKind
    wire_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Measured:
    """All that was measured of a machine, its ranks busy side by side.

    Attributes:
        kind: of device.
        device: its name.
        units: the streaming multiprocessors of a GPU, 1 for a CPU.
        memory_bytes: of one rank.
        devices_per_node: ranks that share a node.
        launch_s: of an op that does next to nothing.
        matmuls, memory, ops, collectives: medians over rounds and ranks.
    """

    kind: Literal["cpu", "cuda"]
    device: str
    units: int
    memory_bytes: int
    devices_per_node: int
    launch_s: float
    matmuls: tuple[MatmulSample, ...]
    memory: tuple[MemorySample, ...]
    ops: tuple[OpSample, ...]
    collectives: tuple[CollectiveSample, ...]
