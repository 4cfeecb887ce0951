"""Models of the kinds that torch's own examples train: plans equal the eager module.

``pytest -m slow tests/e2e/test_torch_examples.py`` takes three meshes, and on each of
them 20 plans that are drawn at random.
"""

from __future__ import annotations

import pytest
import torch
from tests.e2e.verified import MESHES
from tests.models.searched import searched
from tests.models.torch_examples import EXAMPLES
from tests.slow import all_slow_but

import partita as pt
from partita.compiler.capture.capture import capture
from partita.one_mesh.planner import Planner
from partita.verifying.verification import DOUBLE_TOLERANCE, Verifier

OPTIONS = pt.Options(hardware="cpu-gloo-free", time_limit=10.0)


def check(name: str, mesh: pt.Mesh, seeds: range) -> None:
    """Check the searched plan of a model, and some that are drawn."""
    torch.manual_seed(0)
    model, args, kwargs = EXAMPLES[name]()
    captured = capture(model, args, kwargs)
    verifier = Verifier.of(model, args, kwargs, draws=captured.program.draws)
    planner = Planner(captured, name, mesh, OPTIONS)
    for plan in (searched(planner), *map(planner.random, seeds)):
        report = verifier.verify_captured(captured, plan)
        assert report.ok, report
        assert report.max_error <= DOUBLE_TOLERANCE, report
        assert set(report.errors) >= set(verifier.double.values)


@pytest.mark.parametrize("name", all_slow_but({*EXAMPLES} - {"twins"}, EXAMPLES))
def test_example_on_two_ranks(name: str) -> None:
    check(name, pt.Mesh(tp=2), range(1))


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("name", EXAMPLES)
def test_example_on_every_mesh(name: str, mesh: pt.Mesh) -> None:
    check(name, mesh, range(20))
