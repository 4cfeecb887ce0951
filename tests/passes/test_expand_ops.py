"""Ops that a plan takes apart, from the search to the ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.compiler.search.hand_made import planner
from tests.models.searched import searched
from torch import nn

from partita.compiler.errors import BadPlan
from partita.compiler.ir.mesh import Mesh
from partita.compiler.plan.plan import Plan
from partita.compiler.rules.rule import Rule
from partita.compiler.rules.table import default_rules
from partita.lowering import Lowered
from partita.passes.expand_ops import ExpandOps
from partita.verifying.verification import Verifier

PINS = {"table.weight": "S(0) use=S(0)", "head.weight": "S(0)"}


class Vocabulary(nn.Module):
    """An embedding, a head and their loss over a vocabulary of 7."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.table(ids))
        return nn.functional.cross_entropy(logits, ids)


def planned(mesh: Mesh) -> tuple[Plan, Verifier, Lowered]:
    torch.manual_seed(0)
    model, ids = Vocabulary(), torch.arange(6) % 7
    pins = {**PINS, "_log_softmax/0": "S(1)"}
    found = planner(model, ids, mesh=mesh, pins=pins)
    plan = searched(found)
    verifier = Verifier.of(model, (ids,), {})
    return plan, verifier, Lowered.of(found.captured, plan, default_rules)


def test_a_split_vocabulary_is_neither_gathered_nor_wrong() -> None:
    plan, verifier, lowered = planned(Mesh(tp=2))
    assert {"table/embedding/0", "_log_softmax/0"} <= set(plan.expanded)
    assert plan.parameters["table.weight"].placements.use.shardings[0].dim == 0  # type: ignore[union-attr]
    moved = [b for b in plan.boxings if b.producer == "parameter:table.weight"]
    assert moved == []
    report = verifier.verify_ranks(lowered.of_all())
    assert report.ok, str(report)


def test_what_is_taken_apart_is_told() -> None:
    plan, _, _ = planned(Mesh(tp=2))
    text = plan.explain("_log_softmax/0")
    assert "aten._log_softmax.default, taken apart" in text
    assert "P(max)" in text
    assert Plan.from_dict(plan.to_dict()).expanded == plan.expanded


def test_an_op_without_parts_cannot_be_taken_apart() -> None:
    plan, _, _ = planned(Mesh(tp=2))
    without = default_rules.with_(Rule("aten.embedding.default", "? d, * -> * d"))
    key = next(iter(k for k in plan.expanded if k.endswith("embedding/0")))
    program = planner(Vocabulary(), torch.arange(6), mesh=Mesh(tp=2)).captured.program
    with pytest.raises(BadPlan, match=f"expanded.{key}: no rule takes aten.embedding"):
        ExpandOps(plan, without).run(program)


def test_a_key_is_a_node_or_taken_apart() -> None:
    plan, _, _ = planned(Mesh(tp=2))
    key = next(iter(plan.nodes))
    item = next(iter(plan.expanded.values()))
    with pytest.raises(BadPlan, match="a node has that key"):
        replace(plan, expanded={key: item}).validate()


class Filtered(nn.Module):
    """A wide window over a signal."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 1, 7, padding=3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).sum()


def test_chunks_that_cannot_lend_their_rows_are_refused() -> None:
    pins = {"x": "S(2)", "conv/convolution/0": "S(2)"}
    found = planner(Filtered(), torch.ones(1, 1, 16), mesh=Mesh(tp=2), pins=pins)
    plan = searched(found)
    key = "conv/convolution/0"
    assert plan.expanded[key].op == "aten.convolution.default"
    smaller = replace(plan, mesh=Mesh(tp=8))
    with pytest.raises(BadPlan, match=f"expanded.{key}: .* chunks as small as"):
        ExpandOps(smaller, default_rules).run(found.captured.program)
