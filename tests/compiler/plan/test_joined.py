"""What of a plan may be one product: of one tensor and parameters as they are held."""

from __future__ import annotations

from dataclasses import replace

from tests.models.projected import HIDDEN, JOINED, WIDTH, planned

from partita.compiler.cost.compute import Product
from partita.compiler.ir.joined import LEFT
from partita.compiler.ir.sbp import Placement
from partita.compiler.plan.joined import Joinable, Joinables, Rows
from partita.compiler.plan.plan import Plan


def joinable(plan: Plan, key: str) -> Joinable:
    found = Joinables(plan).of(key)
    assert found is not None
    return found


def test_products_of_one_tensor_are_alike() -> None:
    plan = planned()
    for one, two in JOINED:
        assert joinable(plan, one).alike == joinable(plan, two).alike
    assert joinable(plan, "q/addmm/0").alike != joinable(plan, "gate/mm/0").alike


def test_each_tells_its_parameters_and_what_the_largest_rank_computes() -> None:
    found = joinable(planned(), "q/addmm/0")
    assert found.held == ("q.weight", "q.bias")
    assert found.product == Product(16, WIDTH, WIDTH)
    split = joinable(planned("tp=2"), "up/mm/0")
    assert split.held == ("up.weight",)
    assert split.product == Product(16, HIDDEN // 2, WIDTH)


def test_nothing_of_the_backward_may() -> None:
    plan = planned()
    products = {key for key, node in plan.nodes.items() if node.op in LEFT}
    found = {key for key in products if Joinables(plan).of(key) is not None}
    assert found < products
    assert found == {key for key in products if plan.nodes[key].phase == "forward"}


def test_what_is_gathered_for_its_use_may_not() -> None:
    plan = planned("tp=2")
    own = plan.parameters["up.weight"]
    held = replace(own.placements, optimizer=Placement.parse("(B,)"))
    parameters = {**plan.parameters, "up.weight": replace(own, placements=held)}
    gathered = replace(plan, parameters=parameters)
    assert Joinables(gathered).of("up/mm/0") is None
    assert Joinables(gathered).of("gate/mm/0") is not None


def test_what_is_sent_may_not() -> None:
    plan = planned("tp=2")
    boxed = {boxing.producer for boxing in plan.boxings}
    assert "down/mm/0" in boxed or any(key.startswith("down") for key in boxed)
    assert Joinables(plan).of("down/mm/0") is None


def test_a_parameter_lies_in_one_row_at_most() -> None:
    plan, rows = planned(), Rows()
    q, k = (joinable(plan, key) for key in JOINED[0])
    assert rows.lay([q, k]) is None
    assert rows.lay([q, k]) is None
    assert rows.lay([k, q]) == "k.weight"
    assert Rows().lay([q, q]) == "q.weight"
