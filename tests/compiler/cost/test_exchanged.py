"""What all ranks exchange is counted at once as it is rank by rank."""

from __future__ import annotations

import time
from math import prod

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.compiler.cost.boxing_strategies import meshes, placements, types

from partita.compiler.cost.exchanged import most_exchanged
from partita.compiler.cost.step import Step, StepKind, exchanged_runs
from partita.compiler.ir.layout import shard_shape
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement

_AT_ONCE_S = 0.1
_IN_TURN_S = 1.5  # all at once takes seven times as long as one by one


@settings(max_examples=200)
@given(st.data())
def test_it_is_the_same_rank_by_rank(data: st.DataObject) -> None:
    shape, mesh = data.draw(types()).shape, data.draw(meshes())
    before = data.draw(placements(shape, mesh.ndim))
    after = data.draw(placements(shape, mesh.ndim))
    step, most = Step(StepKind.ALL_TO_ALL, 0, before, after), 0
    for at in mesh.all_coordinates():
        runs = exchanged_runs(shape, step, mesh, at, at)
        kept = prod(sum(stop - start for start, stop in dim) for dim in runs)
        for placement in (before, after):
            most = max(most, prod(shard_shape(shape, placement, mesh, at)) - kept)
    assert most_exchanged(shape, before, after, mesh) == most


def test_thousands_of_ranks_take_no_time() -> None:
    mesh = Mesh(dp=384, tp=256)
    before = Placement.parse("(S(0), S(0; 40000|40000|40000))")
    after = Placement.parse("(S(0), S(1))")
    started = time.process_time()
    assert most_exchanged((120000, 12288), before, after, mesh) > 0
    assert time.process_time() - started < _AT_ONCE_S


def test_many_segments_on_several_axes_take_little_time_and_room() -> None:
    segments = "|".join(["2"] * 2048)
    before = Placement.parse(f"(S(0; {segments}), S(0; {segments}))")
    after = Placement.parse("(S(0), S(1))")
    started = time.process_time()
    # Rank (0, 0) has one row of two, of which half are in the half that it wants.
    most = most_exchanged((4096, 2), before, after, Mesh(dp=2, tp=2))
    assert most == 2048 * 2 - 1024
    assert time.process_time() - started < _IN_TURN_S
