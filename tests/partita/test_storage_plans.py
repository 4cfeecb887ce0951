"""Parameters held in every way, and much made again: plans equal the eager module.

``pytest -m slow`` runs every way on every model; the quick tests take each way once.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import islice

import pytest
from tests.models.dropout import with_dropout
from tests.models.searched import searched
from tests.models.storage_pins import storage_pins
from tests.models.zoo import Built
from tests.slow import all_slow_but

from partita.compiler.capture.capture import Captured, capture
from partita.compiler.ir.mesh import Mesh
from partita.compiler.plan.plan import Plan
from partita.one_mesh.planner import Planner
from partita.options import Options
from partita.verifying.verification import Verifier

BLOCKS = {"gpt2": "transformer.h.*", "llama": "model.layers.*", "bert": "*.layer.*"}
TWO, THREE, GRID = Mesh(dp=2), Mesh(dp=3), Mesh(dp=2, tp=2)


@lru_cache(maxsize=len(BLOCKS))
def captured(name: str) -> tuple[Built, Captured, Verifier]:
    built = with_dropout(name)
    model, args, kwargs = built
    found = capture(model, args, kwargs)
    draws = found.program.draws
    return built, found, Verifier.of(model, args, kwargs, draws=draws)


def planned(name: str, way: str, mesh: Mesh, *again: str) -> Plan:
    built, found, _ = captured(name)
    options = Options(
        pins=storage_pins(built, way, mesh.ndim),
        hardware="cpu-gloo-free",
        recompute=again,
        time_limit=20,
    )
    return searched(Planner(found, name, mesh, options))


def check(name: str, plan: Plan) -> None:
    _, found, verifier = captured(name)
    assert Plan.from_dict(plan.to_dict()) == plan
    report = verifier.verify_captured(found, plan)
    assert report.ok, str(report)
    assert report.max_error <= 1e-12
    assert set(report.errors) == set(verifier.double.values)


@pytest.mark.parametrize("name", all_slow_but(["gpt2"], BLOCKS))
def test_zero_on_two_ranks(name: str) -> None:
    for way in ("zero1", "zero2"):
        plan = planned(name, way, TWO)
        assert sum(boxing.enters for boxing in plan.boxings) == len(plan.parameters)
        check(name, plan)
    plan = planned(name, "zero3", TWO, "parameter:*", BLOCKS[name])
    assert {" -> " in key for key in plan.recompute} == {True, False}
    check(name, plan)


@pytest.mark.parametrize("name", all_slow_but(["gpt2"], BLOCKS))
def test_zero_with_uneven_pieces_and_on_two_axes(name: str) -> None:
    check(name, planned(name, "zero1", THREE, BLOCKS[name]))
    plan = planned(name, "tensor parallel zero1", GRID)
    assert any(boxing.enters for boxing in plan.boxings)
    check(name, plan)


@pytest.mark.parametrize("name", all_slow_but(["gpt2"], BLOCKS))
def test_random_plans_hold_and_make_again_at_random(name: str) -> None:
    planner = Planner(captured(name)[1], name, TWO, Options())
    drawn = map(planner.random, range(3, 50))
    plans = [*islice((plan for plan in drawn if plan.recompute), 2)]
    assert len(plans) == 2
    for plan in plans:
        check(name, plan)
    assert any(boxing.enters for plan in plans for boxing in plan.boxings)
