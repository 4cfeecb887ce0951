"""How much of a tensor a rank holds.

All that a search needs of memory before boxings are known; memory.py has the exact
answer for a plan.
"""

from __future__ import annotations

from partita.compiler.ir.layout import largest_shard_numel
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType


def held_bytes(type: TensorType, placement: Placement, mesh: Mesh) -> int:
    """Return the bytes of a tensor on the rank that holds most of it.

    >>> x = TensorType.parse("f32[6, 4]")
    >>> held_bytes(x, Placement.parse("S(0)"), Mesh(tp=4))
    32
    """
    return largest_shard_numel(type.shape, placement, mesh) * type.dtype.itemsize
