"""Architectures with dropout on, and what checks plans of them, in doubles."""

from __future__ import annotations

from functools import lru_cache

from tests.models.more_models import MORE

from partita.compiler.capture.capture import Captured, capture
from partita.compiler.ir.mesh import Mesh
from partita.compiler.plan.plan import Plan
from partita.verifying.verification import DOUBLE_TOLERANCE, Verifier

MESHES = (Mesh(tp=2), Mesh(dp=2, tp=2), Mesh(dp=2, cp=2, tp=2))


@lru_cache(maxsize=1)
def captured(name: str) -> tuple[Captured, Verifier]:
    """Return one of ``MORE``, and what runs plans of it next to the eager module."""
    model, args, kwargs = MORE[name]()
    found = capture(model, args, kwargs)
    draws = found.program.draws
    return found, Verifier.of(model, args, kwargs, draws=draws)


def assert_verified(name: str, plan: Plan, which: str = "") -> None:
    """Check that a plan computes all that the model does; ``which`` names the plan."""
    found, verifier = captured(name)
    report = verifier.verify_captured(found, plan)
    assert report.ok, f"{which} {report}"
    assert report.max_error <= DOUBLE_TOLERANCE, f"{which} {report}"
    assert set(report.errors) >= set(verifier.double.values), which
