"""The chain of a step against the graph that the step is lowered to."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.compiler.cost import boxing_strategies as strategies
from tests.compiler.cost.live_storages import live_bytes
from tests.passes import lockstep
from torch import fx

from partita.compiler.cost.boxing_memory import Link, links
from partita.compiler.cost.step import Step, find_step
from partita.compiler.errors import BadPlacement
from partita.compiler.ir.layout import is_even, shard_shape
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement, Split
from partita.compiler.ir.tensor_type import TensorType

MASK = 9
"""Bytes of the zero, and of whether to keep: where all ranks but one are zeros."""


def peaks(type: TensorType, step: Step, mesh: Mesh) -> tuple[int, int]:
    """Return the most that a step allocates: as lowered, and as predicted."""
    first = (0,) * mesh.ndim
    graph = lockstep.lowered(type, (step,), mesh, first)
    shape = shard_shape(type.shape, step.before, mesh, first)
    source = torch.empty(shape, dtype=type.dtype, device="meta")
    module = fx.GraphModule(torch.nn.Module(), graph)
    held = live_bytes(module, (source, *first))
    lies = {"in_order": True, "enters": False}
    chain = links(type, step, mesh, first, **lies, device="cuda")
    sizes = [0, *(link.num_bytes for link in chain), 0]
    return max((n for _, n in held), default=0), max(a + b for a, b in pairwise(sizes))


def _is_plain(step: Step) -> bool:
    """Whether no dim is cut into segments."""
    both = (*step.before.shardings, *step.after.shardings)
    return not any(isinstance(s, Split) and s.segments for s in both)


@settings(max_examples=400, deadline=None)
@given(data=st.data(), mesh=strategies.meshes(), type=strategies.types())
def test_any_step(data: st.DataObject, mesh: Mesh, type: TensorType) -> None:
    before = data.draw(strategies.placements(type.shape, mesh.ndim))
    axis = data.draw(st.integers(0, mesh.ndim - 1))
    try:
        after = before.with_axis(axis, data.draw(strategies.shardings(type.shape)))
    except BadPlacement:
        assume(False)
        return
    step = find_step(type.shape, before, after, axis, mesh)
    if step is None or before == after:
        return
    want, found = peaks(type, step, mesh)
    if _is_plain(step) and all(is_even(type.shape, p, mesh) for p in (before, after)):
        assert abs(want - found) <= MASK
    else:
        # Segments of different sizes, shards smaller than the largest: no more than so.
        assert found <= 3 * want + MASK
        assert want <= 2 * found + MASK


TP = Mesh(tp=2)


def chain(
    type: str,
    before: str,
    after: str,
    *,
    in_order: bool = True,
    enters: bool = False,
) -> list[Link]:
    read = TensorType.parse(type)
    source, target = Placement.parse(before), Placement.parse(after)
    step = find_step(read.shape, source, target, 0, TP)
    assert step is not None
    lies = {"in_order": in_order, "enters": enters}
    return list(links(read, step, TP, (0,), **lies, device="cpu"))


def test_rows_are_gathered_in_place_columns_are_not() -> None:
    whole = 8 * 4 * 4
    gathered = Link("all_gather", whole, whole)
    assert chain("f32[8, 4]", "S(0)", "B") == [gathered]
    assert chain("f32[8, 4]", "S(1)", "B") == [gathered, Link("unpack", whole)]


def test_what_is_not_in_order_is_copied_first() -> None:
    found = chain("f32[8, 4]", "S(0)", "B", in_order=False)
    assert found[0] == Link("pack", 8 * 4 * 4 // 2)


def test_gloo_sums_into_a_copy_before_it_scatters() -> None:
    whole = 8 * 4 * 4
    assert chain("f32[8, 4]", "P", "S(0)") == [
        Link("reduce_scatter", whole // 2, whole)
    ]


def test_the_first_rows_of_what_is_there_all_the_time_are_a_view() -> None:
    copied = [Link("slice", 8 * 4 * 4 // 2)]
    assert chain("f32[8, 4]", "B", "S(0)", enters=True) == []
    assert chain("f32[8, 4]", "B", "S(0)") == copied, "what it is of may go"
    assert chain("f32[8, 4]", "B", "S(1)", enters=True) == copied


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_only_gloo_needs_workspace(device: str) -> None:
    step = find_step((8,), Placement.parse("P"), Placement.parse("S(0)"), 0, TP)
    assert step is not None
    type_ = TensorType.parse("f32[8]")
    lies = {"in_order": True, "enters": False}
    (link,) = links(type_, step, TP, (0,), **lies, device=device)
    assert link.workspace_bytes == (32 if device == "cpu" else 0)
