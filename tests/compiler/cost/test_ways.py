"""Ways pass where both ends may, and are found once for all machines."""

from __future__ import annotations

import numpy as np
import pytest

from partita.compiler.cost.moves import Moves
from partita.compiler.cost.ways import ways_between
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType


def placements(*texts: str) -> tuple[Placement, ...]:
    return tuple(map(Placement.parse, texts))


def test_a_way_takes_the_cheapest_steps() -> None:
    moves = Moves(TensorType.parse("f32[8, 8]"), Mesh(dp=2, tp=2))
    made = placements("(S(0), S(0))", "(B, B)")
    wanted = placements("(B, S(0))", "(B, B)", "(S(0), S(0))")
    ways = ways_between(moves, made, wanted)
    found = ways.seconds([1.0] * len(moves.kinds))
    # From (S(0), S(0)) to (B, S(0)): tp lets go of dim 0, dp does, tp takes it up.
    assert found.tolist() == [[3.0, 2.0, 0.0], [1.0, 0.0, 2.0]]
    dearer = ways.seconds([7.0] * len(moves.kinds))
    assert dearer.tolist() == (7.0 * found).tolist()


def test_what_one_pair_brings_is_closed_to_another() -> None:
    moves = Moves(TensorType.parse("f32[8, 8]"), Mesh(dp=2, tp=2))
    partial, split, whole = placements("(P, P)", "(S(0), B)", "(B, B)")
    alone = ways_between(moves, (split,), (whole,))
    both = ways_between(moves, (partial, split), (whole, partial))
    # A way by P(sum) would be free, and is none of the split's.
    seconds = [
        0.0 if "P" in str(kind.step) else 1.0 + number
        for number, kind in enumerate(moves.kinds)
    ]
    assert both.seconds(seconds)[1, 0] == alone.seconds(seconds)[0, 0] > 0.0
    assert both.seconds(seconds)[0, 0] == 0.0


def test_ways_are_found_once() -> None:
    moves = Moves(TensorType.parse("f32[8]"), Mesh(tp=2))
    ends = placements("S(0)"), placements("B")
    assert ways_between(moves, *ends) is ways_between(moves, *ends)
    assert ways_between(moves, *ends).seconds([np.inf] * len(moves.kinds)) == [
        [pytest.approx(np.inf)]
    ]
