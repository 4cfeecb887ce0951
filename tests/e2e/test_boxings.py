"""Every pair of placements boxed, in one process and on gloo, as it was planned.

Values to the last bit where they are copied; bytes at the process group as planned.
What they come to against a lower bound is in tests/compiler/cost/test_boxing_bounds.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from tests.compiler.cost.boxing_pairs import (
    MESHES,
    SHAPES,
    Shape,
    every_pair,
    some_pairs,
)
from tests.e2e.boxing_programs import BoxingCase, X, run_in_one_process
from tests.slow import slow

from partita.compiler.cost.collectives import carried_out
from partita.compiler.cost.step import payload_bytes_at
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.runtime.executor import bind_program
from partita.runtime.groups import bind
from partita.runtime.launch import launch
from partita.runtime.measure import count_collectives

TWO, FOUR, SQUARE, FLAT_CUBE = MESHES
UNEVEN, EVEN = (5, 3), (8, 4)
Pairs = Callable[[Shape, Mesh], Iterator[tuple[Placement, Placement]]]
Counted = tuple[str, tuple[int, ...], int]


def cases(mesh: Mesh, shapes: Sequence[Shape], pairs: Pairs) -> Iterator[BoxingCase]:
    hardware = load_hardware("cpu-gloo")
    for shape in shapes:
        for pair in pairs(shape, mesh):
            yield BoxingCase.of(TensorType(shape, torch.float32), pair, mesh, hardware)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("mesh", [TWO, FOUR], ids=str)
def test_every_pair_on_one_axis(mesh: Mesh, shape: Shape) -> None:
    for case in cases(mesh, [shape], every_pair):
        run_in_one_process(case)


@pytest.mark.parametrize("shape", [slow(EVEN), UNEVEN, slow((1, 2))], ids=str)
def test_pairs_on_two_axes(shape: Shape) -> None:
    for case in cases(SQUARE, [shape], some_pairs):
        run_in_one_process(case)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_pair_on_two_axes(shape: Shape) -> None:
    for case in cases(SQUARE, [shape], every_pair):
        run_in_one_process(case)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [EVEN, UNEVEN, ()], ids=str)
def test_pairs_with_an_axis_of_one_rank(shape: Shape) -> None:
    for case in cases(FLAT_CUBE, [shape], some_pairs):
        run_in_one_process(case)


def walk(
    mesh: Mesh, shapes: Sequence[Shape], pairs: Pairs
) -> tuple[list[torch.Tensor], list[Counted]]:
    """Box all pairs on this rank; return the results, and what was communicated."""
    groups = bind(mesh, "cpu")
    results: list[torch.Tensor] = []
    with count_collectives() as found:
        for case in cases(mesh, shapes, pairs):
            program = bind_program(case.program(groups.coordinates), groups)
            (result,) = program.run({X: case.shards()[groups.rank]})
            assert result is not None
            results.append(result)
    return results, [(str(c.kind), c.ranks, c.payload_bytes) for c in found]


def walk_on_ranks(
    mesh: Mesh, shapes: Sequence[Shape], pairs: Pairs, patch: pytest.MonkeyPatch
) -> None:
    """Box all pairs in one launch; check values, and bytes at the process group."""
    planned = list(cases(mesh, shapes, pairs))
    num_steps = sum(len(case.planned.steps) for case in planned)
    patch.setenv("TORCH_FR_BUFFER_SIZE", str(2 * num_steps + 2000))
    target, arguments = f"{__file__}:walk", (mesh, shapes, pairs)
    ranks = launch(target, mesh.size, arguments, timeout_s=800.0)
    for case, *results in zip(planned, *(found for found, _ in ranks), strict=True):
        case.check(results)
    for rank, (_, counted) in enumerate(ranks):
        assert counted == [call for case in planned for call in expected(case, rank)]


def expected(case: BoxingCase, rank: int) -> Iterator[Counted]:
    """Yield what the rank puts into each collective, by the plan."""
    mesh, coords = case.mesh, case.mesh.coordinates(rank)
    for step in case.planned.steps:
        if case.communicates(step, coords):
            groups = mesh.groups(mesh.names[step.axis])
            (group,) = (ranks for ranks in groups if rank in ranks)
            payload = payload_bytes_at(case.type, step, mesh, coords)
            assert step.collective is not None
            kind, put_in = carried_out(
                step.collective, payload, mesh, step.axis, case.hardware
            )
            yield str(kind), group, put_in


@pytest.mark.dist
@pytest.mark.parametrize(
    "shapes", [(EVEN, UNEVEN, ()), slow(tuple(SHAPES))], ids=["few", "all"]
)
def test_every_pair_on_two_gloo_ranks(
    shapes: tuple[Shape, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    walk_on_ranks(TWO, shapes, every_pair, monkeypatch)


@pytest.mark.dist
@pytest.mark.slow
def test_every_pair_on_four_gloo_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    walk_on_ranks(FOUR, SHAPES, every_pair, monkeypatch)


@pytest.mark.dist
@pytest.mark.slow
def test_every_pair_on_two_by_two_gloo_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    walk_on_ranks(SQUARE, [EVEN, UNEVEN, ()], every_pair, monkeypatch)


@pytest.mark.dist
@pytest.mark.slow
def test_pairs_on_gloo_ranks_with_an_axis_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    walk_on_ranks(FLAT_CUBE, [UNEVEN, ()], some_pairs, monkeypatch)
