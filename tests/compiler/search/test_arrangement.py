"""What a pipeline is laid out on: rows of ranks, stages on them, the mesh of all."""

from __future__ import annotations

import pytest

from partita.compiler.ir.mesh import Mesh
from partita.compiler.schedules.make import make_schedule
from partita.compiler.search.arrangement import SINGLE, Form, whole_mesh


def test_rows_follow_each_other_in_the_order_of_ranks() -> None:
    schedule = make_schedule("interleaved", 2, 2, 2)
    sizes = (1, 3)
    meshes = tuple((Mesh(dp=sizes[row]),) for row in schedule.rank_of)
    form = Form(schedule, sizes, meshes)
    assert form.ranks == ((0,), (1, 2, 3), (0,), (1, 2, 3))
    assert str(form) == "2 x 2 stages on 1+3 ranks, interleaved, 2 microbatches"


@pytest.mark.parametrize(
    ("meshes", "wanted"),
    [
        ((Mesh(dp=2, tp=2), Mesh(dp=2, tp=2)), "pp=2,dp=2,tp=2"),
        ((SINGLE, SINGLE), "pp=2"),
        ((Mesh(tp=1), Mesh(tp=1)), "pp=2,tp=1"),
        ((Mesh(dp=2), Mesh(tp=2)), "rank=4"),
        ((SINGLE, Mesh(tp=2)), "rank=3"),
    ],
)
def test_the_mesh_of_all_ranks(meshes: tuple[Mesh, ...], wanted: str) -> None:
    assert str(whole_mesh(meshes, make_schedule("1f1b", 2, 2))) == wanted
