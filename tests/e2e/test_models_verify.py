"""Plans of real models, each checked against the user's own eager module.

``pytest -m slow tests/e2e`` runs every mesh, every way to pin and twenty random plans
per model; the quick tests take two ranks, a random plan, and each way to pin once.
"""

from __future__ import annotations

from functools import lru_cache

import pytest
from tests.models.captured import captured
from tests.models.searched import searched
from tests.models.zoo import (
    ZOO,
    data_parallel_pins,
    sharded_pins,
    tensor_parallel_pins,
)
from tests.slow import all_slow_but

from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.plan.plan import Plan
from partita.one_mesh.planner import Planner
from partita.options import Options
from partita.verifying.verification import Verifier

MESHES = (Mesh(tp=2), Mesh(tp=4), Mesh(dp=2, tp=2))
LIMIT_S = 20.0


@lru_cache(maxsize=len(ZOO))
def _verifier(name: str) -> Verifier:
    return Verifier.of(*ZOO[name]())


def _planner(name: str, mesh: Mesh, options: Options) -> Planner:
    return Planner(captured(name)[1], name, mesh, options)


def _assert_verified(name: str, plan: Plan) -> None:
    report = _verifier(name).verify_captured(captured(name)[1], plan)
    assert report.ok, str(report)
    assert report.max_error <= 1e-9
    assert set(report.errors) == set(_verifier(name).double.values)


def _pins(name: str, kind: str, mesh: Mesh) -> dict[str, str]:
    built = ZOO[name]()
    if kind == "data parallel":
        return data_parallel_pins(built, mesh.ndim)
    if kind == "tensor parallel":
        return tensor_parallel_pins(built[0], mesh.ndim)
    return sharded_pins(built[0], mesh.ndim)


def _check_searched(name: str, mesh: Mesh) -> None:
    _assert_verified(name, searched(_planner(name, mesh, Options(time_limit=LIMIT_S))))


def _check_free_links(name: str, mesh: Mesh, num_random: int) -> None:
    options = Options(hardware="cpu-gloo-free", time_limit=LIMIT_S)
    planner = _planner(name, mesh, options)
    plan = searched(planner)
    print(f"{name} on {mesh}: {plan.split_fraction:.1%} of the flops are split")
    assert plan.split_fraction >= 0.95
    _assert_verified(name, plan)
    for seed in range(num_random):
        _assert_verified(name, planner.random(seed))


def _check_pinned(name: str, mesh: Mesh, kind: str) -> None:
    pins = _pins(name, kind, mesh)
    plan = searched(_planner(name, mesh, Options(pins=pins, time_limit=LIMIT_S)))
    for pin, text in pins.items():
        if pin in plan.parameters:
            wanted = Placement.parse(text.partition("use=")[0])
            assert plan.parameters[pin].placements.storage == wanted
    _assert_verified(name, plan)


KINDS = ("data parallel", "tensor parallel", "all stored split")


@pytest.mark.parametrize("name", all_slow_but(["mlp", "gpt2", "resnet"], ZOO))
def test_plans_for_two_ranks_compute_what_the_model_computes(name: str) -> None:
    _check_free_links(name, Mesh(tp=2), num_random=1)


@pytest.mark.parametrize("name", ["mlp", "gpt2", "resnet"])
def test_plans_at_the_price_of_links_compute_what_the_model_computes(name: str) -> None:
    _check_searched(name, Mesh(tp=2))


@pytest.mark.parametrize(
    ("name", "kind"), list(zip(("bert", "gpt2", "llama"), KINDS, strict=True))
)
def test_pinned_plans_compute_what_the_model_computes(name: str, kind: str) -> None:
    _check_pinned(name, Mesh(tp=2), kind)


def test_plans_for_two_by_two_ranks_compute_what_the_model_computes() -> None:
    _check_free_links("mlp", Mesh(dp=2, tp=2), num_random=1)
    _check_pinned("mlp", Mesh(dp=2, tp=2), "tensor parallel")


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("name", ZOO)
def test_searched_and_random_plans_on_every_mesh(name: str, mesh: Mesh) -> None:
    _check_searched(name, mesh)
    _check_free_links(name, mesh, num_random=20)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("name", ZOO)
def test_pinned_plans_on_every_mesh(name: str, mesh: Mesh, kind: str) -> None:
    _check_pinned(name, mesh, kind)
