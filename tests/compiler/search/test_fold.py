"""Problems with equal blocks cost the same folded, and are no worse for it."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from tests.compiler.search.hand_made import machine, planner
from tests.compiler.search.random_problems import (
    choice,
    node,
    problem,
    random_problem,
)
from tests.slow import slow
from torch import Tensor, nn

from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.build import build_model
from partita.compiler.search.fold import Fold
from partita.compiler.search.problem import (
    HeldCharges,
    HeldPrices,
    LetGo,
    Problem,
    SearchNode,
    cost_of,
    tied_placement,
)
from partita.compiler.search.solver import solve


class Tower(nn.Module):
    """Equal residual layers between an embedding and a head."""

    def __init__(self, layers: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.first = nn.Linear(8, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(layers))
        self.last = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = x + self.dropout(torch.relu(layer(x)))
        return self.last(x).square().mean()


@pytest.mark.parametrize("mesh", [Mesh(tp=2), Mesh(dp=2, tp=2)], ids=str)
@pytest.mark.parametrize("layers", [4, 6])
def test_the_optimum_of_a_tower_is_that_of_alike_layers(
    layers: int, mesh: Mesh
) -> None:
    slow_links = machine(flops_per_s=1e8, bytes_per_s=1e6)
    posed = planner(Tower(layers), torch.randn(8, 8), mesh=mesh, hardware=slow_links)
    whole = posed.posed.problem
    fold = Fold.of(whole)
    assert len(fold.members) < len(whole.nodes)
    folded, free = solve(whole, 60, fold=fold), solve(whole, 60)
    assert folded.status == free.status == "optimal"
    assert folded.seconds == pytest.approx(free.seconds, rel=1e-9)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_more_layers_are_no_larger_problem(dropout: float) -> None:
    sizes = set[int]()
    for layers in (5, 9):
        model = Tower(layers, dropout)
        posed = planner(model, torch.randn(8, 8), mesh=Mesh(tp=2)).posed
        sizes.add(len(Fold.of(posed.problem).members))
    assert len(sizes) == 1


@cache
def tower_in(microbatches: int) -> Problem:
    mesh, x = Mesh(dp=2, tp=2), torch.randn(8, 8)
    return planner(Tower(5), x, mesh=mesh, microbatches=microbatches).posed.problem


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("seed", range(10))
def test_a_folded_assignment_costs_what_it_costs_unfolded(
    seed: int, microbatches: int
) -> None:
    posed = tower_in(microbatches)
    fold = Fold.of(posed)
    model = build_model(fold)
    rng = random.Random(seed)
    chosen = [
        rng.randrange(len(posed.nodes[members[0]].choices)) for members in fold.members
    ]
    for tie in fold.ties:
        stored = posed.nodes[fold.members[tie.first][0]].choices[chosen[tie.first]]
        wanted = posed.nodes[fold.members[tie.second][0]].choices
        fitting = [c.signature.operands[0] for c in wanted]
        chosen[tie.second] = fitting.index(tied_placement(stored))
    positions = {v: chosen[v % len(fold.members)] for v in model.costs}
    unfolded = cost_of(posed, fold.unfold(chosen))
    assert model.cost_of(positions) == pytest.approx(unfolded, rel=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_without_classes_every_node_is_by_itself(seed: int) -> None:
    posed = random_problem(seed)
    fold = Fold.none(posed)
    assert not fold.has_classes
    assert fold.unfold(range(len(posed.nodes))) == tuple(range(len(posed.nodes)))


def test_what_leaves_once_is_not_like_what_leaves_in_every_part() -> None:
    enters = node("x", (), choice("", "B", 1.0))
    call, output = (choice("B", "B", 1.0),), (choice("B", "", 0.0),)
    nodes = [enters]
    for block in range(5):
        made = replace(enters, key=f"{block}", operands=((len(nodes) - 1, 0),))
        nodes.append(replace(made, choices=call, times=2))
    for block in range(5):
        leaves = SearchNode(f"once {block}", output, ((block + 1, 0),), ())
        nodes += [leaves, replace(leaves, key=f"twice {block}", times=2)]
    fold = Fold.of(problem(*nodes))
    assert fold.has_classes
    classes = {fold.class_of[i]: set[int]() for i in range(6, len(nodes))}
    for index in range(6, len(nodes)):
        classes[fold.class_of[index]].add(nodes[index].times)
    assert sorted(map(sorted, classes.values())) == [[1], [2]]


def test_nothing_folds_to_nothing() -> None:
    assert Fold.of(problem()).members == ()


def test_the_seconds_of_unlike_members_are_added() -> None:
    nodes = [
        node("a", (), choice("", "B", 1.0), choice("", "S(0)", 5.0)),
        node("b", (), choice("", "B", 2.0), choice("", "S(0)", 1.0)),
        node("c", (), choice("", "B", 2.0), choice("", "S(0)", 1.0)),
    ]
    fold = Fold(problem(*nodes), (0, 0, 0))
    assert build_model(fold).costs[0].tolist() == [5.0, 7.0]
    found = solve(fold.problem, 10, fold=fold)
    assert (found.choices, found.seconds) == ((0, 0, 0), 5.0)
    assert solve(fold.problem, 10).seconds == 3.0


@cache
def solved_tower() -> tuple[Problem, Fold, tuple[int, ...]]:
    posed = planner(Tower(4), torch.randn(8, 8), mesh=Mesh(dp=2, tp=2)).posed
    fold = Fold.of(posed.problem)
    return posed.problem, fold, solve(posed.problem, 60, fold=fold).choices


@pytest.mark.parametrize("seed", [*range(4), *map(slow, range(4, 8))])
def test_an_assignment_costs_the_same_by_classes(seed: int) -> None:
    posed, fold, solved = solved_tower()
    assert fold.has_classes
    draw = random.Random(seed)
    nodes = [posed.nodes[first] for first, *_ in fold.members]
    alike = fold.unfold([draw.randrange(len(node.choices)) for node in nodes])
    unlike = list(solved)
    unlike[draw.randrange(len(unlike))] = 0
    for choices in (alike, solved, unlike):
        wanted = cost_of(posed, choices)
        assert fold.cost_of(choices) == pytest.approx(wanted, rel=1e-12)
    assert fold.cost_of(solved) < float("inf")


def test_other_prices_fold_as_before() -> None:
    posed = planner(Tower(4), torch.randn(8, 8), mesh=Mesh(tp=2)).posed
    fold = Fold.of(posed.problem)

    def dear(type: TensorType, made: Placement, wanted: Placement) -> float:
        return 1.0

    dearer = replace(posed.problem, box_seconds=dear)
    other = fold.with_prices(dearer)
    assert other.problem is dearer
    anew = Fold(dearer, fold.class_of)
    assert (other.shared, other.ties) == (anew.shared, anew.ties)


@pytest.mark.parametrize("seed", range(60))
def test_tensors_are_counted_with_those_alike(seed: int) -> None:
    rng = random.Random(seed)
    whole = random_problem(seed, most_nodes=14)
    values = sorted({value for node in whole.nodes for value in node.operands})
    copies = {value: rng.choice((0.5, 1.0)) for value in values if rng.random() < 0.5}
    sources = {value: rng.choice((0.0, 2.0)) for value in values if rng.random() < 0.5}
    let_go = [LetGo(rate, HeldCharges(np.ones(1), np.ones(1))) for rate in (1.0, 2.0)]
    places = [
        (at, position)
        for at, node in enumerate(whole.nodes)
        for position in range(len(node.operands))
    ]
    released = {place: rng.choice(let_go) for place in places if rng.random() < 0.3}
    held = HeldPrices(copies, sources, released, (False,) * len(whole.nodes))
    kinds = [(len(node.operands), len(node.result_types)) for node in whole.nodes]
    number = [
        kinds.index(kind) if rng.random() < 0.8 else at for at, kind in enumerate(kinds)
    ]
    known = dict[int, int]()
    classes = tuple(known.setdefault(each, len(known)) for each in number)
    priced = replace(whole, held=rng.choice((None, held)))

    uses: dict[tuple[int, int, int], dict[int, set[int]]] = {}
    for at, node_ in enumerate(whole.nodes):
        for position, value in enumerate(node_.operands):
            users = uses.setdefault((*value, node_.times), {})
            users.setdefault(classes[at], set()).add(position)
    alike: Counter[object] = Counter()
    for (source, result, times), users in uses.items():
        value, charges = (source, result), (0.0, 0.0, ())
        if priced.held is not None:
            freed = [
                (classes[at], position, released[at, position])
                for at, position in places
                if (at, position) in released
                and (*whole.nodes[at].operands[position], whole.nodes[at].times)
                == (source, result, times)
            ]
            freed.sort(key=lambda each: (each[0], each[1], each[2].rate))
            charges = copies.get(value, 0.0), sources.get(value, 0.0), tuple(freed)
        by_class = tuple(
            sorted((user, tuple(sorted(at))) for user, at in users.items())
        )
        alike[classes[source], result, by_class, times, charges] += 1
    found = [
        ((s.source, s.result, s.users, s.times, (s.rate, s.charged, s.freed)), s.count)
        for s in Fold(priced, classes).shared
    ]
    assert found == list(alike.items())
