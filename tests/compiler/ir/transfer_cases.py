"""Transfers from one mesh to another: random ones, and some that are easily missed."""

from __future__ import annotations

from hypothesis import strategies as st
from tests.compiler.ir import placement_strategies as strategies

from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Broadcast, Partial, Placement
from partita.compiler.ir.transfer import Placed

Case = tuple[tuple[int, ...], Placed, Placed]
SHAPES = st.lists(st.integers(0, 9), max_size=3).map(tuple)


@st.composite
def placed(draw: st.DrawFn, shape: tuple[int, ...]) -> Placed:
    mesh = draw(strategies.meshes())
    drawn = draw(strategies.legal_placements(shape, mesh.ndim))
    parts = (Broadcast() if isinstance(s, Partial) else s for s in drawn.shardings)
    first, others = draw(st.integers(0, 6)), draw(st.integers(0, 2))
    ranks = draw(st.permutations(range(first, first + mesh.size + others)))
    return Placed(mesh, tuple(ranks[: mesh.size]), Placement(tuple(parts)))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    shape = draw(SHAPES)
    return shape, draw(placed(shape)), draw(placed(shape))


def on(ranks: range, placement: str, **sizes: int) -> Placed:
    mesh = Mesh(**sizes) if sizes else Mesh(a=len(ranks))
    return Placed(mesh, tuple(ranks), Placement.parse(placement))


SEGMENTED: Case = (
    (7, 6),
    on(range(2), "S(0; 3|4)"),
    on(range(1, 5), "(S(0), S(1; 2|1|3))", a=2, b=2),
)
EMPTY: Case = (3,), on(range(4), "S(0)"), on(range(3, 8), "S(0)")
NO_DIMS: Case = (), on(range(2), "B"), on(range(2, 5), "B")
