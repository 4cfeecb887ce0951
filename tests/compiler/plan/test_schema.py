"""The published schema holds for plans of every kind, and saved plans diff well."""

from __future__ import annotations

import difflib
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from tests.models.pipelines import BATCH, WIDTH, Chain
from tests.slow import all_slow_but

import partita as pt
from partita.compiler.cost.optimizer_memory import OPTIMIZERS
from partita.compiler.plan.store import read_schema

SHARDED = "storage=(B); gradient=(S(0)); optimizer=(S(0)); use=(B)"
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "inference": ("dp=2", {"train": False}),
    "microbatches": ("dp=2", {"microbatches": 4, "pins": {"layers.*.weight": SHARDED}}),
    "pipeline": ("pp=2,dp=2", {"microbatches": 4, "schedule": "zero-bubble"}),
    "interleaved": (
        "pp=2",
        {
            "microbatches": 4,
            "schedule": "interleaved",
            "stages_per_rank": 2,
            "time_limit": 8,
        },
    ),
}


@cache
def planned(kind: str) -> pt.Plan:
    torch.manual_seed(0)
    mesh, options = KINDS[kind]
    batch = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
    return pt.plan(Chain(), *batch, mesh=mesh, options=pt.Options(**options))


@pytest.mark.parametrize(
    "kind", all_slow_but(["inference", "microbatches", "interleaved"], KINDS)
)
def test_saved_plans_hold_to_the_schema(kind: str, tmp_path: Path) -> None:
    plan = planned(kind)
    path = tmp_path / "plan.json"
    plan.save(path)
    data = json.loads(path.read_text("utf-8"))
    jsonschema.Draft202012Validator(read_schema()).validate(data)
    assert pt.Plan.load(path) == plan
    lines = path.read_text("utf-8").splitlines()
    for key in plan.nodes:
        own = [line for line in lines if line.startswith(f"  {json.dumps(key)}: ")]
        assert len(own) == 1, key


def test_a_node_that_changes_is_one_line_of_a_diff(tmp_path: Path) -> None:
    plan = planned("pipeline")
    plan.save(tmp_path / "a.json")
    key = next(key for key, node in plan.nodes.items() if node.role is None)
    node = replace(plan.nodes[key], seconds=1.0)
    replace(plan, nodes={**plan.nodes, key: node}).save(tmp_path / "b.json")
    before, after = (
        (tmp_path / name).read_text().splitlines() for name in ("a.json", "b.json")
    )
    changed = [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
    assert len(changed) == 2
    assert all(json.dumps(key) in line for line in changed)


def test_the_schema_knows_the_optimizers_that_are_reckoned_with() -> None:
    options = read_schema()["properties"]["options"]["properties"]
    assert options["optimizer"]["enum"] == sorted(OPTIMIZERS)
