"""What an alternative is said to cost is what the whole step then costs more."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.compiler.search.hand_made import RandomModel, machine, planner
from tests.models import zoo
from tests.models.captured import captured

from partita.compiler.cost.boxing import cheapest_steps
from partita.compiler.ir.layout import largest_shard_numel
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.signature import Signature
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.alternatives import Alternatives, Around
from partita.compiler.search.problem import (
    Choice,
    Problem,
    SearchNode,
    Tie,
    cost_of,
    made_placement,
    tied_placement,
)
from partita.compiler.search.solver import solve
from partita.one_mesh.planner import Planner
from partita.options import Options

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


@dataclass(frozen=True)
class Counted:
    """Bytes as the machine of these tests has them: AdamW, f32."""

    problem: Problem

    def box_bytes(self, type_: TensorType, made: Placement, want: Placement) -> int:
        return cheapest_steps(type_, made, want, self.problem.mesh, HARDWARE).bytes

    def ways(self, index: int, choice: Choice) -> tuple[float, int]:
        if choice.held is None:
            return 0.0, 0
        (type_,), mesh = self.problem.nodes[index].result_types, self.problem.mesh
        assert type_ is not None
        whole, piece = made_placement(choice, 0), choice.held.optimizer
        way = cheapest_steps(type_, piece, whole, mesh, HARDWARE)
        return way.seconds, way.bytes

    def held_bytes(self, index: int, choice: Choice) -> int:
        placements = list(choice.signature.results)
        if choice.held is not None:
            own, is_apart = (
                choice.held.optimizer,
                choice.held.optimizer != placements[0],
            )
            placements += [own] * (3 if is_apart else 2)
        types = [t for t in self.problem.nodes[index].result_types if t is not None]
        if choice.held is not None:
            types *= len(placements)
        return sum(
            largest_shard_numel(type_.shape, placement, self.problem.mesh)
            * type_.dtype.itemsize
            for type_, placement in zip(types, placements, strict=True)
            if placement is not None
        )


def totals(problem: Problem, choices: Sequence[int]) -> tuple[float, int, int]:
    """Return what an assignment computes, sends and holds."""
    figures, compute_s = Counted(problem), 0.0
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
    for index, choice in enumerate(chosen):
        ways_s, ways_bytes = figures.ways(index, choice)
        compute_s, sent = compute_s + choice.seconds - ways_s, sent + ways_bytes
        held += figures.held_bytes(index, choice)
    return compute_s, sent, held


def test_parts_are_differences_of_totals() -> None:
    model = RandomModel(3, 5)
    made = planner(model, model.inputs(), mesh=Mesh(a=2), hardware=HARDWARE)
    problem = made.posed.problem
    choices = solve(problem, 10.0).choices
    prices, before = Alternatives(problem, choices), totals(problem, choices)

    figures = Counted(problem)
    num_sending = num_held = 0
    for node in range(len(problem.nodes)):
        for choice, _ in prices.of_node(node):
            other = with_change(problem, choices, node, choice)
            if cost_of(problem, other) == inf:
                continue
            (parts,) = prices.parts_of(node, [choice], figures)
            compute_s, sent, held = totals(problem, other)
            assert parts.compute_s == pytest.approx(compute_s - before[0], abs=1e-15)
            assert (parts.bytes, parts.held_bytes) == (
                sent - before[1],
                held - before[2],
            )
            num_sending += parts.bytes != 0
            num_held += figures.ways(node, problem.nodes[node].choices[choice])[1] > 0
    assert num_sending > 5
    assert num_held


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


@cache
def solved_gpt2() -> tuple[Problem, tuple[int, ...]]:
    """Return the problem of a GPT-2 on two ranks, and what solves it."""
    options = Options(hardware=HARDWARE)
    made = Planner(captured("gpt2")[1], "gpt2", Mesh(tp=2), options)
    problem = made.posed.problem
    return problem, tuple(solve(problem, 10.0).choices)


def test_nodes_of_equal_surroundings_have_equal_alternatives() -> None:
    problem, choices = solved_gpt2()
    prices = Alternatives(problem, choices)
    known: dict[Around, list[tuple[int, float]]] = {}
    for node in range(len(problem.nodes)):
        found = prices.of_node(node)
        key = problem.nodes[node].key
        assert known.setdefault(prices.around(node), found) == found, key
    assert len(known) < 0.9 * len(problem.nodes)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_nodes_of_equal_places_have_equal_surroundings(seed: int) -> None:
    problem, solved = solved_gpt2()
    choices = legal_choices(problem, seed) if seed else solved
    prices = Alternatives(problem, choices)
    known: dict[Hashable, Around] = {}
    for node in range(len(problem.nodes)):
        found = prices.around(node)
        key = problem.nodes[node].key
        assert known.setdefault(prices.place(node), found) == found, key
    assert seed or len(known) < 0.9 * len(problem.nodes)


@pytest.mark.parametrize("seed", range(150))
def test_nodes_of_equal_places_are_surrounded_alike_whatever_is_tied(seed: int) -> None:
    """Few kinds of nodes, so that many are alike, and ties that share tensors."""
    rng, b, s = random.Random(seed), Placement.parse("B"), Placement.parse("S(0)")
    kinds = {
        (operands, results): (Choice(Signature((s,) * operands, (b,) * results), 1.0),)
        for operands in range(3)
        for results in range(3)
    }
    type_ = TensorType((4,), torch.float32)
    nodes: list[SearchNode] = []
    made: list[tuple[int, int]] = []
    for index in range(12):
        few = rng.randint(1, 2) if index > 3 else 0  # the first ones enter
        operands = tuple(rng.choice(made) for _ in range(few))
        types = (type_,) * (rng.randint(0, 2) if few else 1)
        choices = kinds[few, len(types)]
        nodes.append(SearchNode(f"n{index}", choices, operands, types))
        made += [(index, result) for result in range(len(types))]
    ties = [Tie(rng.randrange(4), rng.randrange(4, 12)) for _ in range(8)]
    whole = Problem(
        tuple(nodes), tuple(ties), Mesh(tp=2), lambda _type, _made, _wanted: 1.0
    )
    prices = Alternatives(whole, [0] * len(nodes))
    known: dict[Hashable, Around] = {}
    for index in range(len(nodes)):
        around = prices.around(index)
        assert known.setdefault(prices.place(index), around) == around
