"""Complex numbers are exchanged as pairs, on ranks that know of no others."""

from __future__ import annotations

import pytest
import torch
from tests.e2e.boxing_programs import BoxingCase, X, run_in_one_process

from partita.compiler.hardware.profile import load_hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.passes.exchange_instead import exchange_instead
from partita.passes.exchange_pairs import exchange_pairs
from partita.runtime.executor import bind_program
from partita.runtime.groups import bind
from partita.runtime.launch import launch

MESH = Mesh(tp=2)
PAIRS = [
    *(("S(0)", "S(1)"), ("S(1)", "S(0)")),
    *(("S(0)", "B"), ("P", "B"), ("P", "S(0)"), ("B", "S(1)")),
]


def cases(dtype: torch.dtype) -> list[BoxingCase]:
    hardware = load_hardware("cpu-gloo")
    return [
        BoxingCase.of(
            TensorType(shape, dtype),
            (Placement.parse(source), Placement.parse(target)),
            MESH,
            hardware,
        )
        for shape in ((8, 4), (5, 3))
        for source, target in PAIRS
    ]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_values_stay(dtype: torch.dtype) -> None:
    for case in cases(dtype):
        run_in_one_process(case)


def walk() -> list[torch.Tensor]:
    """Box all pairs of placements on this rank."""
    groups = bind(MESH, "cpu")
    results: list[torch.Tensor] = []
    for case in cases(torch.complex64):
        program = bind_program(case.program(groups.coordinates), groups)
        (result,) = program.run({X: case.shards()[groups.rank]})
        assert result is not None
        results.append(result)
    return results


@pytest.mark.dist
def test_gloo_ranks_exchange_them() -> None:
    ranks = launch(f"{__file__}:walk", 2, timeout_s=100.0)
    for case, *results in zip(cases(torch.complex64), *ranks, strict=True):
        case.check(results)


def test_real_numbers_are_left_alone() -> None:
    for case in cases(torch.float32):
        local = exchange_instead(case.lowered((0,)), case.hardware)
        assert exchange_pairs(local) is local
