"""Ways pass where both ends may, and are found once for all machines."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest

from partita.compiler.cost import ways
from partita.compiler.cost.grids import Grids
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
    between = ways_between(moves, made, wanted)
    found = between.seconds([1.0] * len(moves.kinds))
    # From (S(0), S(0)) to (B, S(0)): tp lets go of dim 0, dp does, tp takes it up.
    assert found.tolist() == [[3.0, 2.0, 0.0], [1.0, 0.0, 2.0]]
    dearer = between.seconds([7.0] * len(moves.kinds))
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


def test_many_universes_are_searched_in_several_arrays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moves = Moves(TensorType.parse("f32[8, 12]"), Mesh(dp=2, tp=2))
    dp = "B", "P", "S(0)", "S(1)", "S(0;4|4)"
    tp = "B", "P", "S(0)", "S(1)", "S(1;4|4|4)"
    across = {("S(0;4|4)", "S(0)"), ("S(1)", "S(1;4|4|4)")}  # segments cut apart
    pairs = [own for own in product(dp, tp) if own not in across]
    ends = placements(*(f"({first}, {second})" for first, second in pairs))
    whole = ways.Ways(moves, ends, ends)
    monkeypatch.setattr(ways, "_CELLS", 1)
    apart = ways.Ways(moves, ends, ends)
    of_kinds = [1.0 + number % 7 for number in range(len(moves.kinds))]
    found = whole.seconds(of_kinds)
    assert np.isfinite(found).all()
    assert np.array_equal(found, apart.seconds(of_kinds))
    for figure in ("least_sum", "most_last"):
        one, other = (getattr(own, figure) for own in (whole, apart))
        assert np.array_equal(one(of_kinds, of_kinds), other(of_kinds, of_kinds))


def test_most_universes_get_room_for_the_few_sources_that_they_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moves = Moves(TensorType.parse("f32[32, 64, 64]"), Mesh(dp=2, tp=2))
    dims = 0, 1, 2
    segments = "16|16", "32|32", "32|32"
    finer = "8|8|8|8", "16|16|16|16", "16|16|16|16"
    split = [f"S({d};{own[d]})" for own in (segments, finer) for d in dims]
    axis = "B", "P", "S(0)", "S(1)", "S(2)", *split
    ends = placements(
        *(f"({a}, {b})" for a, b in product(axis, axis) if a[:3] != b[:3] or a == "B")
    )
    rooms: list[tuple[int, ...]] = []

    def noted(shape: tuple[int, ...], **others: Any) -> Grids:
        rooms.append(shape)
        return Grids(shape=shape, **others)

    monkeypatch.setattr(ways, "Grids", noted)
    ways.Ways(moves, ends, ends)
    apart = sum(map(prod, rooms))
    rooms.clear()
    monkeypatch.setattr(ways, "_CELLS", 1 << 40)
    ways.Ways(moves, ends, ends)
    (one,) = rooms
    assert apart < prod(one) / 2
