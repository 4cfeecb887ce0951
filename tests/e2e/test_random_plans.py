"""Plans drawn at random among all that are legal equal the eager module, in doubles.

A searched plan takes few of the signatures that the table offers; drawn ones take all
of them, sooner or later. ``pytest -m slow tests/e2e/test_random_plans.py`` draws twenty
per architecture and mesh, which takes hours; ``-k mamba`` takes one architecture. A
failure names its seed: ``Planner(...).random(seed)`` draws that plan again.
"""

from __future__ import annotations

import pytest
from tests.e2e.verified import MESHES, assert_verified, captured
from tests.models.more_models import MORE

from partita.compiler.ir.mesh import Mesh
from partita.one_mesh.planner import Planner
from partita.options import Options

SEEDS = tuple(range(first, first + 5) for first in range(0, 20, 5))
"""In parts, since a test may take so long and no longer."""


@pytest.mark.slow
@pytest.mark.parametrize("seeds", SEEDS, ids=lambda s: f"{s.start}-{s.stop - 1}")
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("name", MORE)
def test_random_plans_verify(name: str, mesh: Mesh, seeds: range) -> None:
    options = Options(hardware="cpu-gloo-free")
    planner = Planner(captured(name)[0], name, mesh, options)
    for seed in seeds:
        assert_verified(name, planner.random(seed), f"seed {seed}:")
