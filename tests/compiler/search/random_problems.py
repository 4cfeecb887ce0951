"""Random search problems, small enough to try everything or just too large."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from math import inf

import torch

from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.signature import Signature
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.held import Held
from partita.compiler.search.problem import (
    Choice,
    Problem,
    SearchNode,
    Tie,
    check_operands,
    cost_of,
)

PLACEMENTS = tuple(Placement.parse(text) for text in ("B", "S(0)", "S(1)", "P", "S(2)"))
TYPES = tuple(TensorType((4, 4, size), torch.float32) for size in (4, 8, 16))
MESH = Mesh(a=2)

BoxSeconds = Callable[[TensorType, Placement, Placement], float]


def choice(operands: str, results: str, seconds: float) -> Choice:
    """Return a choice from texts like ``"B, S(0)"``."""

    def placements(text: str) -> tuple[Placement, ...]:
        return tuple(Placement.parse(part) for part in text.split(",") if part.strip())

    return Choice(Signature(placements(operands), placements(results)), seconds)


def node(
    key: str, operands: tuple[tuple[int, int], ...], *choices: Choice
) -> SearchNode:
    """Return a node whose results are all ``TYPES[0]``."""
    num_results = len(choices[0].signature.results) if choices else 1
    return SearchNode(key, choices, operands, (TYPES[0],) * num_results)


def problem(
    *nodes: SearchNode, ties: tuple[Tie, ...] = (), box: float = 1.0
) -> Problem:
    """Return a problem in which every boxing costs the same."""
    made = Problem(nodes, ties, MESH, lambda _type, _made, _wanted: box)
    check_operands(made)
    return made


def _box_table(rng: random.Random, draw: Callable[[], float]) -> BoxSeconds:
    hole = rng.choice([0.0, 0.0, 0.1])
    table = {
        key: inf if rng.random() < hole else draw()
        for key in product(TYPES, PLACEMENTS, PLACEMENTS)
    }
    return lambda type_, made, wanted: table[type_, made, wanted]


def random_problem(seed: int, most_nodes: int = 6, most_choices: int = 5) -> Problem:
    """Return a problem with shared tensors, ties, holes and equal costs, by seed."""
    rng = random.Random(seed)
    placements = PLACEMENTS[: rng.randint(1, 5)]
    whole_numbers = rng.random() < 0.5  # many assignments of equal cost

    def seconds() -> float:
        return float(rng.randint(0, 3)) if whole_numbers else rng.random()

    nodes: list[SearchNode] = []
    for index in range(rng.randint(1, most_nodes)):
        values = [
            (source, result)
            for source in range(max(0, index - 6), index)
            for result in range(len(nodes[source].result_types))
        ]
        count = rng.randint(0, 3) if values else 0
        operands = tuple(rng.choice(values) for _ in range(count))
        types = tuple(rng.choice(TYPES) for _ in range(rng.randint(1, 2)))
        choices = tuple(
            Choice(
                Signature(
                    tuple(rng.choice(placements) for _ in operands),
                    tuple(rng.choice(placements) for _ in types),
                ),
                seconds(),
            )
            for _ in range(rng.randint(1, most_choices))
        )
        times = random.Random(f"{seed} {index}").choice((1, 1, 3))
        nodes.append(SearchNode(f"n{index}", choices, operands, types, times))
    ties = [
        Tie(first, second)
        for second, taker in enumerate(nodes)
        if taker.operands and rng.random() < 1.5 / len(nodes)
        if (first := rng.randrange(len(nodes))) != second
    ]
    drawn = random.Random(f"{seed} held")
    for first in {tie.first for tie in ties if drawn.random() < 0.5}:
        nodes[first] = replace(
            nodes[first],
            choices=tuple(
                replace(choice, held=Held(*drawn.choices(placements, k=2)))
                for choice in nodes[first].choices
            ),
        )
    made = Problem(tuple(nodes), tuple(ties), MESH, _box_table(rng, seconds))
    check_operands(made)
    return made


def all_costs(posed: Problem) -> dict[tuple[int, ...], float]:
    """Return the cost of every assignment."""
    ranges = (range(len(node.choices)) for node in posed.nodes)
    return {choices: cost_of(posed, choices) for choices in product(*ranges)}
