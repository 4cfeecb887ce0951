"""Plans drawn at random among all that are legal equal the eager module, in doubles.

A searched plan takes few of the signatures that the table offers; drawn ones take all
of them, sooner or later. ``pytest -m slow tests/e2e/test_random_plans.py`` draws twenty
per architecture and mesh, which takes hours; ``-k mamba`` takes one architecture. A
failure names its seed: ``Planner(...).random(seed)`` draws that plan again.
"""

from __future__ import annotations

from functools import lru_cache

import pytest
from tests.models.more_models import MORE

from partita.compiler.capture.capture import Captured, capture
from partita.compiler.ir.mesh import Mesh
from partita.options import Options
from partita.planner import Planner
from partita.verification import DOUBLE_TOLERANCE, Verifier

MESHES = (Mesh(tp=2), Mesh(dp=2, tp=2), Mesh(dp=2, cp=2, tp=2))
SEEDS = tuple(range(first, first + 5) for first in range(0, 20, 5))
"""In parts, since a test may take so long and no longer."""


@lru_cache(maxsize=1)
def _captured(name: str) -> tuple[Captured, Verifier]:
    model, args, kwargs = MORE[name]()
    captured = capture(model, args, kwargs)
    draws = captured.program.draws
    return captured, Verifier.of(model, args, kwargs, draws=draws)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", SEEDS, ids=lambda s: f"{s.start}-{s.stop - 1}")
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("name", MORE)
def test_random_plans_verify(name: str, mesh: Mesh, seeds: range) -> None:
    captured, verifier = _captured(name)
    options = Options(hardware="cpu-gloo-free")
    planner = Planner(captured, name, mesh, options)
    for seed in seeds:
        report = verifier.verify_captured(captured, planner.random(seed))
        assert report.ok, f"seed {seed}: {report}"
        assert report.max_error <= DOUBLE_TOLERANCE, f"seed {seed}: {report}"
        assert set(report.errors) >= set(verifier.double.values), f"seed {seed}"
