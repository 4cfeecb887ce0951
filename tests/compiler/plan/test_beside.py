"""Sums that pass beside computing are those whose waits stand behind it all."""

from __future__ import annotations

import pytest
import torch
from tests.models import zoo
from tests.models.captured import captured
from tests.models.searched import searched
from torch import fx

import partita as pt
from partita.compiler.ir.program import has_info, info
from partita.compiler.plan.beside import sums_beside
from partita.compiler.plan.plan import Plan
from partita.lowering import Lowered
from partita.one_mesh.planner import Planner
from partita.runtime.collectives import is_collective, is_wait


def planned(name: str, kind: str, seed: int | None = None) -> tuple[Plan, Lowered]:
    built, known = captured(name)
    pins = {
        "dp": lambda: zoo.data_parallel_pins(built, 1),
        "zero": lambda: zoo.sharded_pins(built[0], 1),
        "tp": lambda: zoo.tensor_parallel_pins(built[0], 1),
        "drawn": dict[str, str],
    }[kind]()
    planner = Planner(known, name, pt.Mesh(dp=2), pt.Options(pins=pins))
    plan = searched(planner) if seed is None else planner.random(seed)
    return plan, Lowered.of(known, plan, pt.default_rules)


def waits_behind_all(program: Lowered) -> set[str]:
    """Return the keys of boxings whose last wait stands behind all that is computed."""
    nodes = list(program.at((0,)).graph_module.graph.nodes)
    found: set[str] = set()
    is_behind = True
    for node in reversed(nodes):
        if node.op != "call_function":
            continue
        if is_wait(node) or _adds_up(node):
            if is_behind:
                found.add(info(node).key)
        elif not is_collective(node):
            is_behind &= _is_view(node)
    return found


def _adds_up(node: fx.Node) -> bool:
    """Whether a call adds up what ranks exchanged, once that was waited for."""
    is_of_boxing = has_info(node) and " -> " in info(node).key
    return is_of_boxing and node.target is torch.ops.aten.sum.dim_IntList


def _is_view(node: fx.Node) -> bool:
    return getattr(node.target, "is_view", False) or "reshape" in str(node.target)


@pytest.mark.parametrize(
    ("name", "kind", "seed"),
    [
        ("gpt2", "dp", None),
        ("resnet", "dp", None),
        ("mlp", "dp", None),
        ("gpt2", "tp", None),
        ("gpt2", "zero", None),
        *(("gpt2", "drawn", seed) for seed in range(3)),
    ],
)
def test_such_sums_are_waited_for_behind_it_all(
    name: str, kind: str, seed: int | None
) -> None:
    plan, program = planned(name, kind, seed)
    beside, behind = sums_beside(plan), waits_behind_all(program)
    assert beside <= behind
    if kind == "dp":
        assert len(beside) >= min(10, len(plan.parameters))
