"""Rules that a model brings or lacks: proven, or derived by experiment."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import partita as pt
from partita.compiler.errors import BadRule
from partita.compiler.plan.plan import Plan

OP = "tests_rules_for.share.default"
KEY = "tests_rules_for.share/0"
TP = pt.Mesh(tp=2)
FREE = "cpu-gloo-free"


@torch.library.custom_op("tests_rules_for::share", mutates_args=())
def share(x: Tensor) -> Tensor:
    """Return each element's share of its row's magnitude."""
    return x / x.abs().sum(-1, keepdim=True)


@share.register_fake
def _share_type(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _differentiate(ctx: object, grad: Tensor) -> Tensor:
    return grad * 0.5  # of no one's interest: only one op shall be unknown


share.register_autograd(_differentiate)


class Sharing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.tests_rules_for.share(self.up(x)).square().mean()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_a_row_is_derived_reported_and_carried_by_the_plan(tmp_path: Path) -> None:
    model, x = Sharing(), torch.randn(4, 6)
    plan = pt.plan(model, x, mesh=TP, options=pt.Options(hardware=FREE))
    (row,) = plan.derived_rules
    assert (row.op, row.nodes) == (OP, (KEY,))
    (told,) = [item for item in plan.reported if item.op == row.op]
    assert told.kind == "derived"
    assert str(plan.nodes[KEY].signature) == "(S(0),) -> (S(0),)"
    plan.save(tmp_path / "plan.json")
    report = pt.verify(model, x, plan=Plan.load(tmp_path / "plan.json"))
    assert report.ok, str(report)
    assert list((tmp_path / "partita").rglob("*share*"))  # remembered


def test_a_rule_of_the_user_is_taken_when_it_holds() -> None:
    rules = pt.default_rules.with_(pt.Rule(OP, "r ? -> r ?"))
    options = pt.Options(rules=rules, hardware=FREE)
    model, x = Sharing(), torch.randn(4, 6)
    plan = pt.plan(model, x, mesh=TP, options=options)
    assert plan.derived_rules == ()
    assert pt.verify(model, x, plan=plan, rules=rules).ok
    assert str(plan.nodes[KEY].signature) == "(S(0),) -> (S(0),)"


def test_a_rule_of_the_user_that_does_not_hold_is_refused() -> None:
    rules = pt.default_rules.with_(pt.Rule(OP, "* -> *"))
    options = pt.Options(rules=rules)
    with pytest.raises(BadRule, match=r"share\.default .*S\(1\)"):
        pt.plan(Sharing(), torch.randn(4, 6), mesh=TP, options=options)
