"""What an alternative is said to cost is what the whole step then costs more."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.compiler.search.hand_made import RandomModel, machine, planner
from tests.models import zoo

from partita.compiler.cost.boxing import cheapest_steps
from partita.compiler.ir.layout import largest_shard_numel
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.alternatives import Alternatives, Around
from partita.compiler.search.problem import (
    Problem,
    cost_of,
    made_placement,
    tied_placement,
)
from partita.compiler.search.solver import solve
from partita.options import Options
from partita.planner import Planner

HARDWARE = machine(launch_s=1e-9, alpha_s=1e-8, bytes_per_s=1e9)


def legal_choices(problem: Problem, seed: int) -> list[int]:
    """Return choices at random that keep the ties."""
    rng = random.Random(seed)
    choices = [rng.randrange(len(node.choices)) for node in problem.nodes]
    for tie in problem.ties:
        asked = tied_placement(problem.nodes[tie.first].choices[choices[tie.first]])
        options = [c.signature.operands[0] for c in problem.nodes[tie.second].choices]
        choices[tie.second] = options.index(asked)
    return choices


def with_change(
    problem: Problem, choices: Sequence[int], node: int, choice: int
) -> list[int]:
    """Return the choices with that of one node, and of what is tied to it, changed."""
    other = list(choices)
    other[node] = choice
    for tie in problem.ties:
        if tie.first == node:
            asked = tied_placement(problem.nodes[node].choices[choice])
            options = [
                c.signature.operands[0] for c in problem.nodes[tie.second].choices
            ]
            other[tie.second] = options.index(asked)
    return other


def changed(problem: Problem, choices: Sequence[int], node: int, choice: int) -> float:
    """Return the cost of the step with one node, and what is tied to it, changed."""
    return cost_of(problem, with_change(problem, choices, node, choice))


def check_deltas(problem: Problem, choices: Sequence[int], nodes: list[int]) -> None:
    cost = cost_of(problem, choices)
    prices = Alternatives(problem, choices)
    for node in nodes:
        found = prices.of_node(node)
        assert [delta for _, delta in found] == sorted(delta for _, delta in found)
        if node not in prices.is_output:
            everything = set(range(len(problem.nodes[node].choices)))
            assert {choice for choice, _ in found} == everything
        assert (choices[node], 0.0) in found
        for choice, delta in found:
            other = changed(problem, choices, node, choice)
            if other < inf:
                assert delta == pytest.approx(other - cost, abs=cost * 1e-12)


@settings(max_examples=15)
@given(st.integers(0, 1 << 20), st.booleans(), st.integers(0, 99))
def test_deltas_are_differences_of_cost(seed: int, train: bool, drawn: int) -> None:
    model = RandomModel(seed, 5)
    made = planner(
        model, model.inputs(), mesh=Mesh(a=2), train=train, hardware=HARDWARE
    )
    problem = made.posed.problem
    nodes = list(range(len(problem.nodes)))
    check_deltas(problem, legal_choices(problem, drawn), nodes)


def totals(problem: Problem, choices: Sequence[int]) -> tuple[float, int, int]:
    """Return what an assignment computes, sends and holds of all results."""
    chosen = [n.choices[c] for n, c in zip(problem.nodes, choices, strict=True)]
    boxed: set[tuple[int, int, Placement]] = set()
    for node, choice in zip(problem.nodes, chosen, strict=True):
        for value, want in zip(node.operands, choice.signature.operands, strict=True):
            boxed.add((*value, want))
    sent = held = 0
    for source, result, want in boxed:
        type_ = problem.nodes[source].result_types[result]
        made = made_placement(chosen[source], result)
        if type_ is not None and made != want:
            steps = cheapest_steps(type_, made, want, problem.mesh, HARDWARE)
            sent += steps.bytes
    for node, choice in zip(problem.nodes, chosen, strict=True):
        for result, type_ in enumerate(node.result_types):
            if type_ is not None:
                made = made_placement(choice, result)
                numel = largest_shard_numel(type_.shape, made, problem.mesh)
                held += numel * type_.dtype.itemsize
    return sum(choice.seconds for choice in chosen), sent, held


def test_parts_are_differences_of_totals() -> None:
    model = RandomModel(3, 5)
    made = planner(model, model.inputs(), mesh=Mesh(a=2), hardware=HARDWARE)
    problem = made.posed.problem
    choices = solve(problem, 10.0).choices
    prices, before = Alternatives(problem, choices), totals(problem, choices)

    def box_bytes(type_: TensorType, made: Placement, want: Placement) -> int:
        return cheapest_steps(type_, made, want, problem.mesh, HARDWARE).bytes

    num_sending = 0
    for node in range(len(problem.nodes)):
        for choice, _ in prices.of_node(node):
            other = with_change(problem, choices, node, choice)
            if cost_of(problem, other) == inf:
                continue
            (parts,) = prices.parts_of(node, [choice], box_bytes)
            compute_s, sent, held = totals(problem, other)
            assert parts.compute_s == pytest.approx(compute_s - before[0], abs=1e-15)
            assert (parts.bytes, parts.held_bytes) == (
                sent - before[1],
                held - before[2],
            )
            num_sending += parts.bytes != 0
    assert num_sending > 5


def test_nothing_beats_the_solution_by_one_change() -> None:
    model, args, _ = zoo.mlp()
    problem = planner(model, *args, mesh=Mesh(dp=2, tp=2)).posed.problem
    choices = solve(problem, 30.0).choices
    nodes = random.Random(0).sample(range(len(problem.nodes)), 12)
    check_deltas(problem, choices, nodes)
    prices = Alternatives(problem, choices)
    for node in range(len(problem.nodes)):
        for choice, delta in prices.of_node(node):
            if changed(problem, choices, node, choice) < inf:
                assert delta >= -1e-12


def test_nodes_of_equal_surroundings_have_equal_alternatives() -> None:
    model, args, kwargs = zoo.gpt2()
    options = Options(hardware=HARDWARE)
    made = Planner.of(model, args, kwargs, Mesh(tp=2), options)
    problem = made.posed.problem
    prices = Alternatives(problem, solve(problem, 10.0).choices)
    known: dict[Around, list[tuple[int, float]]] = {}
    for node in range(len(problem.nodes)):
        found = prices.of_node(node)
        key = problem.nodes[node].key
        assert known.setdefault(prices.around(node), found) == found, key
    assert len(known) < 0.9 * len(problem.nodes)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_nodes_of_equal_places_have_equal_surroundings(seed: int) -> None:
    model, args, kwargs = zoo.gpt2()
    options = Options(hardware=HARDWARE)
    problem = Planner.of(model, args, kwargs, Mesh(tp=2), options).posed.problem
    choices = legal_choices(problem, seed) if seed else solve(problem, 10.0).choices
    prices = Alternatives(problem, choices)
    known: dict[Hashable, Around] = {}
    for node in range(len(problem.nodes)):
        found = prices.around(node)
        key = problem.nodes[node].key
        assert known.setdefault(prices.place(node), found) == found, key
    assert seed or len(known) < 0.9 * len(problem.nodes)
