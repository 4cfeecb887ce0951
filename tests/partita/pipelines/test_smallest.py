"""A refused limit of a pipeline tells of one that is not refused."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.models.pipelines import FEW_CALLS

import partita as pt
from partita.compiler.errors import NoSolution
from partita.pipelines import smallest

CASES = [
    ("chain", "pp=2", 2, "1f1b"),
    pytest.param("chain", "pp=2", 2, "interleaved", marks=pytest.mark.slow),
    pytest.param("tied", "pp=2,tp=2", 1, "1f1b", marks=pytest.mark.slow),
    pytest.param("diamond", "pp=4", 2, "gpipe", marks=pytest.mark.slow),
]


def planned(
    name: str, mesh: str, microbatches: int, schedule: str, memory: int
) -> pt.Plan:
    model, args, kwargs = FEW_CALLS[name]()
    options = pt.Options(
        hardware="cpu-gloo-free",
        microbatches=microbatches,
        schedule=schedule,
        memory=memory,
        time_limit=6.0,
    )
    return pt.plan(model, *args, mesh=pt.Mesh.parse(mesh), options=options, **kwargs)


@pytest.mark.parametrize(("name", "mesh", "microbatches", "schedule"), CASES)
def test_what_a_refusal_says_is_needed_is_enough(
    name: str, mesh: str, microbatches: int, schedule: str
) -> None:
    case = name, mesh, microbatches, schedule
    with pytest.raises(NoSolution, match="no plan was found that needs") as refused:
        planned(*case, memory=1000)
    least = refused.value.least_bytes
    assert least is not None
    assert 1000 < planned(*case, memory=least).predicted.bytes <= least


def test_a_cut_gives_calls_of_its_neediest_stage_to_neighbours() -> None:
    ends = 4, 8, 12
    moved = [cut for calls in (1, 2, 4) for cut in smallest.shorter(ends, 1, calls)]

    assert moved == [(5, 8, 12), (4, 7, 12), (6, 8, 12), (4, 6, 12)]
    assert all(begin < end for cut in moved for begin, end in pairwise(cut))
    assert [*smallest.shorter(ends, 0, 1)] == [(3, 8, 12)]
    assert [*smallest.shorter(ends, 2, 1)] == [(4, 9, 12)]
