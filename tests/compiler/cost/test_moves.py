"""Steps of one kind cost the same on every machine, and each is the one to find."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.compiler.cost.boxing_strategies import meshes, placements, shardings, types

from partita.compiler.cost.boxing import step_seconds
from partita.compiler.cost.moves import Moves
from partita.compiler.cost.step import find_step, local_copies, step_wire_bytes
from partita.compiler.errors import BadPlacement
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Broadcast, Partial, Placement, Split
from partita.compiler.ir.tensor_type import TensorType


@settings(max_examples=60)
@given(st.data())
def test_steps_of_a_kind_cost_the_same(data: st.DataObject) -> None:
    mesh, type_ = data.draw(meshes()), data.draw(types())
    moves = Moves(type_, mesh)
    some = st.lists(placements(type_.shape, mesh.ndim), min_size=2, max_size=6)
    for before in data.draw(some):
        for axis in range(mesh.ndim):
            sharding = data.draw(shardings(type_.shape))
            move = moves.get(before, axis, sharding)
            try:
                after = before.with_axis(axis, sharding)
            except BadPlacement:
                assert move is None
                continue
            step = find_step(type_.shape, before, after, axis, mesh)
            assert (None if move is None else move.step) == step
            if move is None:
                continue
            first, wire, copies = moves.kinds[move.kind]
            assert wire == step_wire_bytes(type_, move.step, mesh)
            assert copies == local_copies(type_, move.step, mesh)
            for name in ("cpu-gloo", "h100-dgx"):
                own, other = (
                    step_seconds(type_, one, mesh, load_hardware(name))
                    for one in (move.step, first)
                )
                assert own == pytest.approx(other, rel=1e-12)


def test_a_grid_holds_the_kinds_of_all_steps() -> None:
    type_, mesh = TensorType.parse("f32[8, 4]"), Mesh(dp=2, tp=2)
    moves = Moves(type_, mesh)
    options = ((Broadcast(), Split(0)), (Broadcast(), Split(0), Partial()))
    grids = moves.kinds_between(options)
    assert [grid.shape for grid in grids] == [(2, 3, 2), (2, 3, 3)]
    for axis, grid in enumerate(grids):
        for (*at, new), kind in np.ndenumerate(grid):
            before = Placement(tuple(o[n] for o, n in zip(options, at, strict=True)))
            move = moves.get(before, axis, options[axis][new])
            stays = new == at[axis]
            assert kind == (-1 if stays or move is None else move.kind)
    assert moves.kinds_between(options) is grids
