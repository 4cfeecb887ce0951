"""What a rank holds of a tensor that is cut unevenly."""

from __future__ import annotations

from partita.compiler.cost.held_bytes import held_bytes
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType


def test_the_largest_shard_counts() -> None:
    x = TensorType.parse("f32[6, 4]")
    assert held_bytes(x, Placement.parse("(S(0), S(1))"), Mesh(a=4, b=2)) == 2 * 2 * 4
    assert held_bytes(x, Placement.parse("(P, B)"), Mesh(a=4, b=2)) == 6 * 4 * 4
