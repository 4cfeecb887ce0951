from math import prod

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from partita.compiler.ir.layout import shard_shape
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import (
    Broadcast,
    Partial,
    Placement,
    Reduction,
    Sharding,
    Split,
)
from partita.runtime.shards import assemble, take_shard


@st.composite
def placed_tensors(draw: st.DrawFn) -> tuple[torch.Tensor, Placement, Mesh]:
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    mesh = Mesh(**{f"axis{i}": size for i, size in enumerate(sizes)})
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    segments = {
        dim: tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
        for dim in range(len(shape))
        if draw(st.booleans())
    }
    shape = tuple(sum(segments.get(d, (size,))) for d, size in enumerate(shape))
    choices: list[Sharding] = [Broadcast(), *(Partial(kind) for kind in Reduction)]
    choices += [Split(dim, segments.get(dim, ())) for dim in range(len(shape))]
    shardings = [draw(st.sampled_from(choices)) for _ in sizes]
    tensor = torch.arange(1.0, prod(shape) + 1).reshape(shape)
    return tensor, Placement(tuple(shardings)), mesh


@given(placed_tensors())
@settings(deadline=None)
def test_shards_have_their_shapes_and_assemble(
    case: tuple[torch.Tensor, Placement, Mesh],
) -> None:
    tensor, placement, mesh = case
    shape = tuple(tensor.shape)
    shards = [take_shard(tensor, placement, mesh, c) for c in mesh.all_coordinates()]
    for coordinates, shard in zip(mesh.all_coordinates(), shards, strict=True):
        assert tuple(shard.shape) == shard_shape(shape, placement, mesh, coordinates)
        assert shard.is_contiguous()
    assert torch.equal(assemble(shards, shape, placement, mesh), tensor)


def test_a_shard_does_not_keep_the_whole_tensor_alive() -> None:
    whole = torch.arange(8.0)
    shard = take_shard(whole, Placement.parse("S(0)"), Mesh(tp=2), (0,))
    assert shard.untyped_storage().nbytes() == 16


def test_a_shard_keeps_the_order_of_dims_in_memory() -> None:
    whole = torch.zeros(2, 4, 3, 3).to(memory_format=torch.channels_last)
    shard = take_shard(whole, Placement.parse("S(1)"), Mesh(tp=2), (1,))
    assert shard.is_contiguous(memory_format=torch.channels_last)


def test_a_shard_of_another_shape_is_refused() -> None:
    shards = [torch.zeros(2), torch.zeros(2)]
    with pytest.raises(ValueError, match=r"rank 1 holds \[2\] of \[3\] \(S\(0\),\)"):
        assemble(shards, (3,), Placement.parse("S(0)"), Mesh(tp=2))
