"""Random placements: any at all, and legal ones for a shape."""

from __future__ import annotations

from itertools import pairwise

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

WHOLE = st.just(Broadcast())
PARTIAL = st.sampled_from(list(Reduction)).map(Partial)
SEGMENTS = st.lists(st.integers(1, 99), max_size=8).map(tuple)


def any_shardings() -> st.SearchStrategy[Sharding]:
    split = st.builds(Split, st.integers(0, 5), SEGMENTS)
    return st.one_of(WHOLE, PARTIAL, split)


@st.composite
def any_placements(draw: st.DrawFn) -> Placement:
    parts = draw(st.lists(any_shardings(), min_size=1, max_size=4))
    try:
        return Placement(tuple(parts))
    except BadPlacement:  # two axes cut one dim across each other's segments
        plain = [Split(p.dim) if isinstance(p, Split) else p for p in parts]
        return Placement(tuple(plain))


def meshes() -> st.SearchStrategy[Mesh]:
    sizes = st.lists(st.integers(1, 4), min_size=1, max_size=3)
    return sizes.map(lambda found: Mesh(**{f"a{i}": n for i, n in enumerate(found)}))


@st.composite
def segmentations(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    if size < 2:
        return ()
    cuts = sorted(draw(st.sets(st.integers(1, size - 1), max_size=3)))
    return tuple(b - a for a, b in pairwise([0, *cuts, size]))


@st.composite
def legal_placements(draw: st.DrawFn, shape: tuple[int, ...], ndim: int) -> Placement:
    """Draw a placement; axes that split one dim share its segments or refine them."""
    parts: list[Sharding] = []
    for _ in range(ndim):
        kind = draw(st.sampled_from("BPSSS" if shape else "BP"))
        if kind == "S":
            dim = draw(st.integers(0, len(shape) - 1))
            before = [p for p in parts if isinstance(p, Split) and p.dim == dim]
            segments = before[-1].segments if before else ()
            if draw(st.booleans()) and not segments:
                segments = draw(segmentations(shape[dim]))
            parts.append(Split(dim, segments))
        else:
            parts.append(draw(WHOLE if kind == "B" else PARTIAL))
    return Placement(tuple(parts))
