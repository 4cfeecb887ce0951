"""What a choice needs by itself is no more than what any assignment with it holds."""

from __future__ import annotations

from math import inf

import pytest
import torch
from tests.compiler.search.all_ways import Run, possible
from tests.compiler.search.hand_made import machine, planner
from tests.compiler.search.small_problems import small
from tests.compiler.search.test_limited import limited, posed_layers
from torch import Tensor, nn

from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.search.own_bytes import OwnBytes
from partita.compiler.search.problem import made_placement
from partita.compiler.search.solver import solve
from partita.compiler.search.state import States


@pytest.mark.parametrize("seed", range(8))
def test_no_way_with_a_choice_holds_less(seed: int) -> None:
    posed, optimizer = small(seed)
    own = OwnBytes(posed, posed.fold, optimizer)
    held: dict[tuple[int, int], float] = {}
    for choices in possible(posed.problem):
        run = Run(posed, choices, optimizer)
        peak = min(run.peak(again) for again in run.ways())
        for index, choice in enumerate(choices):
            held[index, choice] = min(held.get((index, choice), inf), peak)
    assert held
    for (index, choice), peak in held.items():
        of_class = own.of_classes[posed.fold.class_of[index]]
        assert of_class[choice] <= peak, posed.problem.nodes[index].key
    assert own.least <= min(held.values())


class Product(nn.Module):
    """A product of two large tensors, of which views are taken."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 128))

    def forward(self, x: Tensor) -> Tensor:
        a, b = (x @ self.weight).chunk(2, -1)
        return (a * b).sum()


def test_operands_results_and_what_enters_are_there_at_once() -> None:
    x = torch.randn(256, 64)
    posed = planner(Product(), x, mesh=Mesh(tp=2), hardware=machine()).posed
    own = OwnBytes(posed, posed.fold, "sgd")
    state = own.state_bytes
    split = Placement.parse("S(0)")
    whole = Placement.parse("B")
    nodes = posed.problem.nodes
    sizes = {"x": 256 * 64 * 4, "w": 64 * 128 * 4, "y": 256 * 128 * 4}
    seed = 4  # what the backward begins with
    assert state == (sizes["x"] + sizes["w"]) / 2 + seed, "it may all be split"
    keys = [node.key for node in nodes]
    product, times = keys.index("mm/0"), keys.index("mul.Tensor/0")
    bytes_of = own.of_classes[posed.fold.class_of[product]]
    seen = 0
    for at, choice in enumerate(nodes[product].choices):
        if choice.signature.operands == (split, whole):
            # x is as it enters; the weight is brought together
            assert bytes_of[at] == state + sizes["w"] / 2 + sizes["y"] / 2
            seen += 1
    bytes_of = own.of_classes[posed.fold.class_of[times]]
    for at, choice in enumerate(nodes[times].choices):
        if choice.signature.operands == (split, split):
            assert bytes_of[at] == state + sizes["y"] / 4 + sizes["y"] / 4, (
                "views of one tensor count once"
            )
            seen += 1
    assert seen == 2


def test_what_enters_counts_as_it_is_stored() -> None:
    posed = posed_layers(Mesh(tp=2))
    own, states = OwnBytes(posed, posed.fold, "adamw"), States(posed, "adamw")
    entering = sorted(states.entering)
    for index in entering:
        choices = posed.problem.nodes[index].choices
        held = [states.of(index, choice).num_bytes for choice in choices]
        rest = own.state_bytes - min(held)
        of_class = own.of_classes[posed.fold.class_of[index]]
        assert [*of_class] == [rest + num_bytes for num_bytes in held]
    made = {made_placement(c, 0) for c in posed.problem.nodes[entering[0]].choices}
    assert len(made) > 1


def test_what_is_known_is_left_in_and_the_least_where_nothing_fits() -> None:
    posed = posed_layers(Mesh(dp=2, tp=2), 6)
    free = solve(posed.problem, 60, fold=posed.fold)
    own = OwnBytes(posed, posed.fold, "adamw")
    assert posed.fold.has_classes
    for limit in (0.0, own.least, 1.2 * own.least, inf):
        left_in = own.within(limit, free.choices)
        for kept, of_class, members in zip(
            left_in, own.of_classes, posed.fold.members, strict=True
        ):
            known = free.choices[members[0]]
            assert kept[known]
            others = [at for at, is_in in enumerate(kept) if is_in and at != known]
            assert all(of_class[at] <= max(limit, own.least) for at in others)
            assert kept.sum() >= (of_class <= max(limit, own.least)).sum() > 0
    assert all(kept.all() for kept in own.within(inf, free.choices))


def test_what_is_found_may_fit_by_itself() -> None:
    posed = posed_layers(Mesh(tp=2))
    limit = int(0.7 * limited(posed).run(1 << 40).keeping.peak_bytes)
    found = limited(posed, seconds=5).run(limit)
    assert found.fits
    own = OwnBytes(posed, posed.fold, "adamw")
    for index, choice in enumerate(found.choices):
        assert own.of_classes[posed.fold.class_of[index]][choice] <= limit
