"""What steps move is counted rank by rank, and payloads of even shards at once."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.compiler.cost.boxing_strategies import meshes, placements, splits, types

from partita.compiler.cost.step import (
    Step,
    StepKind,
    exchanged_runs,
    find_step,
    is_uneven_exchange,
    payload_bytes,
    payload_bytes_at,
    step_wire_bytes,
)
from partita.compiler.errors import BadPlacement
from partita.compiler.ir.layout import shard_shape
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[TensorType, Step, Mesh]:
    """Return a step from one split of an axis to another."""
    type_, mesh = draw(types()), draw(meshes())
    axis = draw(st.integers(0, mesh.ndim - 1))
    placement = draw(placements(type_.shape, mesh.ndim))
    try:
        before, after = (
            placement.with_axis(axis, draw(splits(type_.shape))) for _ in range(2)
        )
    except BadPlacement:
        assume(False)
        raise
    step = find_step(type_.shape, before, after, axis, mesh)
    assume(step is not None and step.kind is StepKind.ALL_TO_ALL)
    assert step is not None
    return type_, step, mesh


def exchanged(shape: tuple[int, ...], step: Step, mesh: Mesh) -> int:
    """Return the most elements that a rank sends to others, or has from them."""
    most = 0
    for coords in mesh.all_coordinates():
        runs = exchanged_runs(shape, step, mesh, coords, coords)
        kept = prod(sum(stop - start for start, stop in dim) for dim in runs)
        for placement in (step.before, step.after):
            most = max(most, prod(shard_shape(shape, placement, mesh, coords)) - kept)
    return most


@settings(max_examples=200)
@given(exchanges())
def test_the_busiest_rank_of_an_exchange_is_counted(
    case: tuple[TensorType, Step, Mesh],
) -> None:
    type_, step, mesh = case
    at = [payload_bytes_at(type_, step, mesh, c) for c in mesh.all_coordinates()]
    assert payload_bytes(type_, step, mesh) == max(at)
    assume(is_uneven_exchange(type_.shape, step, mesh))
    most = exchanged(type_.shape, step, mesh) * type_.dtype.itemsize
    assert step_wire_bytes(type_, step, mesh) == most


@pytest.mark.parametrize(
    ("before", "after", "most"),
    [("S(0), S(0; 4|4|4)", "S(0), S(0)", 16), ("S(0; 6|6), B", "S(0), B", 48)],
)
def test_exchanges_of_segments(before: str, after: str, most: int) -> None:
    type_, mesh = TensorType.parse("f32[12, 4]"), Mesh(a=2, b=2)
    old, new = Placement.parse(before), Placement.parse(after)
    axis = 0 if old.shardings[0] != new.shardings[0] else 1
    step = find_step(type_.shape, old, new, axis, mesh)
    assert step is not None
    assert step_wire_bytes(type_, step, mesh) == most
    assert most == 4 * exchanged(type_.shape, step, mesh)
