"""Shards follow torch.chunk and DTensor; together they are the whole tensor."""

from __future__ import annotations

from collections import Counter
from itertools import product
from math import prod

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.compiler.ir import placement_strategies as strategies
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import empty
from torch.testing._internal.distributed.fake_pg import FakeStore

from partita.compiler.errors import BadPlacement
from partita.compiler.ir.dtensor import to_dtensor
from partita.compiler.ir.layout import (
    check_placement,
    chunk,
    even_shard_shape,
    is_even,
    largest_shard_numel,
    largest_shard_shape,
    shard_runs,
    shard_shape,
)
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Broadcast, Partial, Placement, Split

GRID = Mesh(dp=2, tp=2)
SHAPES = st.lists(st.integers(1, 9), max_size=3).map(tuple)


@given(st.integers(1, 20), st.integers(1, 8))
def test_chunk_is_torch_chunk(size: int, num: int) -> None:
    pieces = [piece.tolist() for piece in torch.arange(size).chunk(num)]
    pieces += [[] for _ in range(num - len(pieces))]  # torch leaves empty ones out
    for index, piece in enumerate(pieces):
        assert list(range(*chunk(size, num, index))) == piece


@st.composite
def cases(draw: st.DrawFn) -> tuple[tuple[int, ...], Placement, Mesh]:
    shape, mesh = draw(SHAPES), draw(strategies.meshes())
    return shape, draw(strategies.legal_placements(shape, mesh.ndim)), mesh


def indices_at(
    shape: tuple[int, ...], placement: Placement, mesh: Mesh, coords: tuple[int, ...]
) -> list[list[int]]:
    """Cut each dim of ``shape`` by lists, one axis after the other."""
    dims = [[list(range(size))] for size in shape]
    for axis, sharding in enumerate(placement.shardings):
        if not isinstance(sharding, Split):
            continue
        whole = list(range(shape[sharding.dim]))
        segments = [len(whole)] if not sharding.segments else list(sharding.segments)
        owner = [i for i, size in enumerate(segments) for _ in range(size)]
        parts: list[list[int]] = []
        for run in dims[sharding.dim]:
            for segment in range(len(segments)):
                piece = [index for index in run if owner[index] == segment]
                if piece:
                    step = -(-len(piece) // mesh.sizes[axis])
                    parts.append(piece[step * coords[axis] : step * (coords[axis] + 1)])
        dims[sharding.dim] = parts
    return [[index for run in runs for index in run] for runs in dims]


@given(cases())
def test_runs_are_the_chunks_of_chunks(
    case: tuple[tuple[int, ...], Placement, Mesh],
) -> None:
    shape, placement, mesh = case
    for coords in mesh.all_coordinates():
        wanted = indices_at(shape, placement, mesh, coords)
        runs = shard_runs(shape, placement, mesh, coords)
        assert [[i for a, b in dim for i in range(a, b)] for dim in runs] == wanted
        assert shard_shape(shape, placement, mesh, coords) == tuple(map(len, wanted))


@given(cases())
def test_every_element_is_held_once_per_copy(
    case: tuple[tuple[int, ...], Placement, Mesh],
) -> None:
    shape, placement, mesh = case
    held: Counter[tuple[int, ...]] = Counter()
    for coords in mesh.all_coordinates():
        held.update(product(*indices_at(shape, placement, mesh, coords)))
    copies = prod(
        mesh.sizes[axis]
        for axis, sharding in enumerate(placement.shardings)
        if isinstance(sharding, Broadcast | Partial)
    )
    assert set(held.values()) <= {copies}
    assert len(held) == prod(shape)


@given(cases())
def test_largest_shard_is_the_largest(
    case: tuple[tuple[int, ...], Placement, Mesh],
) -> None:
    shape, placement, mesh = case
    shapes = [shard_shape(shape, placement, mesh, c) for c in mesh.all_coordinates()]
    assert largest_shard_numel(shape, placement, mesh) == max(map(prod, shapes))
    assert largest_shard_shape(shape, placement, mesh) in shapes
    assert is_even(shape, placement, mesh) == (len(set(shapes)) == 1)
    assert even_shard_shape(shape, placement, mesh) in (None, *set(shapes))
    if even_shard_shape(shape, placement, mesh) is not None:
        assert len(set(shapes)) == 1


def dtensor_parts(
    rank: int, mesh: Mesh, shapes: list[tuple[int, ...]], placements: list[Placement]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return, per tensor, offsets and sizes of the shard that DTensor gives a rank."""
    dist.init_process_group("fake", rank=rank, world_size=mesh.size, store=FakeStore())
    try:
        devices = init_device_mesh("cpu", mesh.sizes, mesh_dim_names=mesh.names)
        found: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        for shape, placement in zip(shapes, placements, strict=True):
            tensor = empty(shape, device_mesh=devices, placements=to_dtensor(placement))
            (part,) = tensor.__create_chunk_list__()
            assert tuple(part.sizes) == tuple(tensor.to_local().shape)
            found.append((tuple(part.offsets), tuple(part.sizes)))
        return found
    finally:
        dist.destroy_process_group()


@settings(max_examples=4)
@given(st.data())
def test_shards_are_those_of_dtensor(data: st.DataObject) -> None:
    sizes = data.draw(st.sampled_from([(3,), (2, 2), (2, 3), (4, 2)]))
    mesh = Mesh(**{f"a{i}": size for i, size in enumerate(sizes)})
    splits = st.sampled_from([Broadcast(), Split(0), Split(1)])
    shape = st.tuples(st.integers(1, 9), st.integers(1, 9))
    shapes = data.draw(st.lists(shape, min_size=20, max_size=20))
    parts = st.tuples(*[splits] * mesh.ndim)
    placements = [
        Placement(found)
        for found in data.draw(st.lists(parts, min_size=20, max_size=20))
    ]
    for rank in range(mesh.size):
        coords = mesh.coordinates(rank)
        theirs = dtensor_parts(rank, mesh, list(shapes), placements)
        for shape_, placement, (offsets, local) in zip(
            shapes, placements, theirs, strict=True
        ):
            assert shard_shape(shape_, placement, mesh, coords) == local
            runs = shard_runs(shape_, placement, mesh, coords)
            if prod(local):
                assert tuple(start for ((start, _),) in runs) == offsets


@pytest.mark.parametrize(
    ("shape", "placement", "message"),
    [
        (
            (4, 4),
            "S(0)",
            "placement (S(0),) has 1 entries, mesh dp=2,tp=2 has 2 axes; give one "
            "entry per axis",
        ),
        (
            (4, 4),
            "(B, S(2))",
            "placement (B, S(2)): S(2) names dim 2, but shape [4, 4] has 2 dims",
        ),
        (
            (4, 6),
            "(B, S(1; 4|4))",
            "placement (B, S(1; 4|4)): the segments of S(1; 4|4) add up to 8, dim 1 of "
            "shape [4, 6] to 6",
        ),
    ],
)
def test_illegal_placement_is_refused(
    shape: tuple[int, ...], placement: str, message: str
) -> None:
    with pytest.raises(BadPlacement) as caught:
        check_placement(shape, Placement.parse(placement), GRID)
    assert str(caught.value) == message


@given(cases())
def test_legal_placement_is_accepted(
    case: tuple[tuple[int, ...], Placement, Mesh],
) -> None:
    shape, placement, mesh = case
    check_placement(shape, placement, mesh)
    assert len(largest_shard_shape(shape, placement, mesh)) == len(shape)
