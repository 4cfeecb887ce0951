"""Random meshes, tensors and placements, uneven and segmented ones among them."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import assume
from hypothesis import strategies as st

from partita.compiler.errors import BadPlacement
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import (
    Broadcast,
    Partial,
    Placement,
    Reduction,
    Sharding,
    Split,
)
from partita.compiler.ir.tensor_type import TensorType

MAX_RANKS = 12


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    mesh = Mesh(**{f"a{i}": size for i, size in enumerate(sizes)})
    assume(mesh.size <= MAX_RANKS)
    return mesh


def types() -> st.SearchStrategy[TensorType]:
    sizes = st.one_of(st.sampled_from([4, 8, 12]), st.integers(1, 9))
    shapes = st.lists(sizes, min_size=1, max_size=3).map(tuple)
    return shapes.map(lambda shape: TensorType(shape, torch.float64))


@st.composite
def splits(draw: st.DrawFn, shape: tuple[int, ...]) -> Split:
    dim = draw(st.integers(0, len(shape) - 1))
    size = shape[dim]
    if size == 1 or not draw(st.booleans()):
        return Split(dim)
    if size % 4 == 0 and draw(st.booleans()):
        return Split(dim, (size // 4,) * 4)
    cuts = sorted(draw(st.sets(st.integers(1, size - 1), min_size=1, max_size=3)))
    ends = [0, *cuts, size]
    return Split(dim, tuple(b - a for a, b in pairwise(ends)))


def shardings(shape: tuple[int, ...]) -> st.SearchStrategy[Sharding]:
    plain = st.sampled_from([Split(dim) for dim in range(len(shape))])
    partial = st.sampled_from(list(Reduction)).map(Partial)
    return st.one_of(st.just(Broadcast()), partial, plain, splits(shape))


@st.composite
def placements(draw: st.DrawFn, shape: tuple[int, ...], ndim: int) -> Placement:
    parts = draw(st.lists(shardings(shape), min_size=ndim, max_size=ndim))
    try:
        return Placement(tuple(parts))
    except BadPlacement:
        return Placement(
            tuple(Split(p.dim) if isinstance(p, Split) else p for p in parts)
        )
