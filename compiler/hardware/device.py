"""What one rank's device reaches: on matmuls by size, on memory by size, op by op."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Tile:
    """A kernel's piece of a product; ``efficiency`` is of the device's best."""

    m: int
    n: int
    efficiency: float


@dataclass(frozen=True, slots=True)
class MatmulCurve:
    """How the speed of a product depends on its sizes.

    The product is cut into tiles, the tiles are dealt to ``units`` in waves, and a
    last wave that is not full takes as long as a full one. Near zero speed grows with
    a size; ``half_m`` is the m at which half the best is reached, likewise the others.
    That of k is in bytes: what a kernel loads before it can start.

    Attributes:
        units: the streaming multiprocessors of a GPU; 1 for a CPU's rank.
        tiles: the kernels' tiles; the fastest for the sizes counts.
        splits: into how many parts a kernel may cut the inner size, for idle units.
    """

    units: int
    tiles: tuple[Tile, ...]
    splits: tuple[int, ...] = (1,)
    half_m: float = 0.0
    half_n: float = 0.0
    half_k_bytes: float = 0.0


FLAT = MatmulCurve(units=1, tiles=(Tile(1, 1, 1.0),))
"""All sizes reach the best speed: for a profile that states no curve."""


@dataclass(frozen=True, slots=True)
class Cache:
    """Ops that touch at most ``bytes`` run at ``bytes_per_s``."""

    bytes: int
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class OpRate:
    """What one op reaches, where matmuls and memory do not tell.

    Attributes:
        flops_per_s: by dtype, in place of what matmuls reach.
        bytes_per_s: of the bytes it touches, at most; ``None`` for the memory's.
    """

    flops_per_s: Mapping[str, float] = field(default_factory=dict[str, float])
    bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """One rank's device.

    Attributes:
        flops_per_s: what the best matmuls reach, by dtype (``f32``, ``bf16``, ...).
        memory_bytes_per_s: what elementwise ops reach, reads and writes together.
        memory_bytes: what one rank may fill.
        launch_s: the fixed cost of one op.
        matmul: how far a matmul is from the best, by its sizes.
        caches: faster memory, smallest first.
        ops: by the name of an op (``aten.tanh.default``), what it reaches itself.
    """

    kind: Literal["cpu", "cuda"]
    flops_per_s: Mapping[str, float]
    memory_bytes_per_s: float
    memory_bytes: int
    launch_s: float
    matmul: MatmulCurve = FLAT
    caches: tuple[Cache, ...] = ()
    ops: Mapping[str, OpRate] = field(default_factory=dict[str, OpRate])
