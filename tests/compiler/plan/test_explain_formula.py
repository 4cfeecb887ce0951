"""Formulas read from a plan give the plan's own seconds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import partita as pt
from partita.compiler.cost.collectives import CollectiveKind, axis_seconds
from partita.compiler.hardware.profile import Hardware
from partita.compiler.plan.explain_formula import call_formula, step_formula
from partita.compiler.plan.plan import Plan


@pytest.fixture(scope="module", params=["cpu-gloo", "h100-dgx"])
def searched(request: pytest.FixtureRequest) -> Plan:
    """Return a plan that splits and re-places something."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 7))
    x = torch.randn(8, 64)
    options = pt.Options(
        loss=lambda logits: logits.softmax(-1).square().mean(),
        hardware=request.param,
        pins={"0.weight": "(B, S(0))", "2.weight": "(S(1), S(1)) use=(B, B)"},
    )
    return pt.plan(model, x, mesh=pt.Mesh(dp=2, tp=2), options=options)


def test_every_call_that_takes_time_has_its_formula(searched: Plan) -> None:
    calls = {key: node for key, node in searched.nodes.items() if node.role is None}
    timed = {key: node.seconds for key, node in calls.items() if node.seconds}
    formulas = {key: call_formula(searched, key) for key in timed}
    found = {k: f.evaluate_at({}) for k, f in formulas.items() if f is not None}
    assert found == pytest.approx(timed, rel=1e-9)


def test_a_formula_scales_as_the_op_does(searched: Plan) -> None:
    key = next(key for key, node in searched.nodes.items() if "mm" in node.op)
    formula = call_formula(searched, key)
    assert formula is not None
    assert "m" in formula.values
    more = formula.evaluate_at({"m": formula.values["m"] * 2**20})
    assert more > 100 * formula.evaluate_at({})
    settled = formula.settled()
    assert settled.evaluate_at({}) == pytest.approx(formula.evaluate_at({}))
    assert "Min(" not in str(settled)
    assert "Piecewise" not in str(settled)


def test_collectives_have_formulas_of_the_bytes_they_move(searched: Plan) -> None:
    steps = [
        (b, n, s) for b in searched.boxings for n, s in enumerate(b.lowering) if s.bytes
    ]
    assert steps
    for boxing, number, step in steps:
        formula = step_formula(searched, boxing, number)
        assert formula is not None
        assert 0 < formula.evaluate_at({}) <= step.seconds * (1 + 1e-9)
        halved = formula.evaluate_at({"itemsize": formula.values["itemsize"] / 2})
        assert halved <= formula.evaluate_at({})


def test_a_price_that_is_none_of_ours_has_no_formula(searched: Plan) -> None:
    key = next(key for key, node in searched.nodes.items() if "mm" in node.op)
    other = replace(searched.nodes[key], seconds=1.0)
    plan = replace(searched, nodes={**searched.nodes, key: other})
    assert call_formula(plan, key) is None


def test_a_later_step_begins_where_the_one_before_ends(searched: Plan) -> None:
    boxings = [b for b in searched.boxings if b.producer == "parameter:2.weight"]
    (boxing,) = [b for b in boxings if len(b.lowering) > 1]
    hardware = Hardware.from_dict(searched.hardware)
    for number, step in enumerate(boxing.lowering):
        formula = step_formula(searched, boxing, number)
        assert formula is not None
        axis, kind = searched.mesh.axis(step.axis), CollectiveKind(step.kind)
        want = axis_seconds(kind, step.bytes, searched.mesh, axis, hardware)
        assert formula.evaluate_at({}) == pytest.approx(want, rel=1e-9)


def test_a_step_that_takes_less_than_its_collective_has_no_formula(
    searched: Plan,
) -> None:
    boxing = max(searched.boxings, key=lambda boxing: boxing.bytes)
    first, *others = boxing.lowering
    other = replace(first, seconds=first.seconds / 100)
    assert step_formula(searched, boxing, 0) is not None
    assert step_formula(searched, replace(boxing, lowering=(other, *others)), 0) is None


def test_explain_prints_them(searched: Plan) -> None:
    key = next(key for key, node in searched.nodes.items() if "mm" in node.op)
    boxing = max(searched.boxings, key=lambda boxing: boxing.bytes)
    assert "  formula    launch_s + " in searched.explain(key)
    text = searched.explain(boxing.key)
    assert "  formula    " in text
    assert "             with " in text
