"""Prices of memory: what is held costs, copies for the backward and state among it."""

from __future__ import annotations

import pytest
import torch
from tests.compiler.search.hand_made import planner
from tests.compiler.search.test_limited import Layers, posed_layers

from partita.compiler.cost.lifetimes import held_bytes
from partita.compiler.ir.mesh import Mesh
from partita.compiler.search.memory_price import MemoryPrice
from partita.compiler.search.problem import made_placement


def test_no_price_changes_nothing() -> None:
    posed = posed_layers(Mesh(tp=2))
    priced = MemoryPrice(posed, "adamw", [0]).problem(0.0)
    for node, before in zip(priced.nodes, posed.problem.nodes, strict=True):
        assert node.choices is before.choices


def test_a_trained_parameter_is_held_four_times() -> None:
    posed = planner(Layers(), torch.randn(64, 32), mesh=Mesh(tp=2)).posed
    rate = 1e-9
    priced = MemoryPrice(posed, "adamw", [5]).problem(rate)
    keys = [node.key for node in posed.problem.nodes]
    at = keys.index("parameter:layers.0.weight")
    node, before = priced.nodes[at], posed.problem.nodes[at]
    (type_,) = node.result_types
    assert type_ is not None
    for choice, free in zip(node.choices, before.choices, strict=True):
        num_bytes = held_bytes(type_, made_placement(choice, 0), Mesh(tp=2))
        assert choice.seconds - free.seconds == pytest.approx(4 * rate * num_bytes)


def test_what_is_not_held_at_the_moment_is_free() -> None:
    posed = posed_layers(Mesh(tp=2))
    num_calls = len(list(posed.candidates.program.calls()))
    late = MemoryPrice(posed, "adamw", [num_calls - 1]).problem(1e-9)
    calls = [n for n in late.nodes if n.operands and n.result_types]
    before = [n for n in posed.problem.nodes if n.operands and n.result_types]
    same = [a.choices is b.choices for a, b in zip(calls, before, strict=True)]
    assert sum(same) > len(same) // 2, "most of the forward is gone by then"
    assert not all(same)


def test_making_again_limits_what_holding_costs() -> None:
    posed = posed_layers(Mesh(tp=2))
    moment = len(list(posed.candidates.program.calls())) // 2
    dear = MemoryPrice(posed, "adamw", [moment]).problem(1e3)
    by_key = {n.key: n for n in posed.problem.nodes}
    forward = [n for n in dear.nodes if n.key.endswith("gelu/0")]
    assert forward
    for node in forward:
        for choice, free in zip(node.choices, by_key[node.key].choices, strict=True):
            assert choice.seconds <= 2 * free.seconds
