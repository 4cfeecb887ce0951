"""The first node that departs is named: forward, backward, boxings, parts of ops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.models.searched import searched
from torch import Tensor, nn

import partita as pt
from partita.compiler.plan.plan import Plan
from partita.compiler.rules import expand
from partita.compiler.rules.rule import Call, Rule, RuleSet
from partita.compiler.rules.table import default_rules
from partita.one_mesh.planner import Planner
from partita.passes import lower_boxings
from partita.passes.local_tensors import Local
from partita.verifying.report import Report
from partita.verifying.verification import Verifier

TP = pt.Mesh(tp=2)


class Rectified(nn.Module):
    """``w`` is wide, so that one product is a partial sum."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.w = nn.Parameter(torch.randn(4, 6))
        self.v = nn.Parameter(torch.randn(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(x @ self.w)
        return (hidden @ self.v).softmax(-1).square().sum()


X = torch.randn(8, 4)


def planned(rules: RuleSet = default_rules, **pins: str) -> Plan:
    named = {name.replace("__", "/"): text for name, text in pins.items()}
    options = pt.Options(rules=rules, pins=named)
    return searched(Planner.of(Rectified(), (X,), {}, TP, options))


def verified(plan: Plan, rules: RuleSet = default_rules) -> Report:
    report = Verifier.of(Rectified(), (X,), {}).verify(plan, rules)
    assert report.failure == ""
    return report


def test_nothing_is_named_where_all_agree() -> None:
    assert verified(planned()).divergence == ""


def test_an_op_with_a_wrong_rule_is_named_with_its_signature() -> None:
    rules = default_rules.with_(Rule("aten.relu.default", "* -> *", linear="0"))
    plan = planned(rules, mm__0="P", relu__0="P")
    report = verified(plan, rules)
    assert not report.ok
    start, _, end = report.divergence.partition(" off by ")
    assert start.startswith("first departs at 'relu/0' (")
    assert start.endswith("forward:")
    assert end.endswith("aten.relu.default under (P(sum),) -> (P(sum),)")
    assert report.divergence in str(report)


def test_an_op_of_the_backward_is_named() -> None:
    op = "aten.threshold_backward.default"
    rules = default_rules.with_(Rule(op, "a b, b a -> a b"))  # its dims do not mix
    key = "relu/0~grad/threshold_backward/0"
    with pytest.raises(Exception, match="factor"):
        planned(rules)
    rules = default_rules.with_(Rule(op, "*, * -> *", linear="0+1"))
    options = pt.Options(rules=rules, pins={key: "P"})
    plan = searched(Planner.of(Rectified(), (X,), {}, TP, options))
    report = verified(plan, rules)
    assert f"first departs at {key!r}" in report.divergence
    assert "backward" in report.divergence


def test_a_boxing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(mm__1="P", _softmax__0="B")
    (boxing, *_) = [b for b in plan.boxings if b.producer == "mm/1"]

    def not_reduced(_: Any, x: Local, *__: object) -> Local:
        return x

    lowering = lower_boxings._StepLowering  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(lowering, "_all_reduce", not_reduced)
    report = verified(plan)
    assert "mm/1" in report.divergence
    assert boxing.producer in report.divergence


def test_parts_that_are_not_the_op_are_named() -> None:
    def wrong(call: Call, x: Any) -> tuple[Any, ...]:
        (out,) = expand.softmax(call, x)
        return (torch.ops.aten.mul.Scalar(out, 2.0),)

    row = default_rules.get("aten._softmax.default")
    assert row is not None
    rules = default_rules.with_(replace(row, expand=wrong))
    plan = planned(rules, _softmax__0="S(1)")
    assert "_softmax/0" in plan.expanded
    report = verified(plan, rules)
    assert report.divergence.startswith("the parts of '_softmax/0' do not compute")
