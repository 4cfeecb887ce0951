"""What a boxing needs by itself is no more than what any assignment with it holds."""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf

import numpy as np
import pytest
import torch
from tests.compiler.search.all_ways import Run, possible
from tests.compiler.search.hand_made import machine, planner
from tests.compiler.search.small_problems import small
from tests.compiler.search.test_limited import posed_layers
from torch import nn

from partita.compiler.cost.held_bytes import held_bytes
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.beside import MessagesBeside, Unawaited
from partita.compiler.search.own_boxings import (
    Boxing,
    OwnBoxings,
    WithinBytes,
    boxings_of,
    may_take,
)
from partita.compiler.search.own_bytes import OwnBytes
from partita.compiler.search.pose import Posed
from partita.compiler.search.problem import price_table


@pytest.mark.parametrize("seed", range(8))
def test_no_way_with_a_boxing_holds_less(seed: int) -> None:
    posed, optimizer = small(seed)
    counted = OwnBoxings(posed)
    state_bytes = OwnBytes(posed, posed.fold, optimizer).state_bytes
    held: dict[Boxing, float] = {}
    for choices in possible(posed.problem):
        run = Run(posed, choices, optimizer)
        peak = min(run.peak(again) for again in run.ways())
        for boxing in boxings_of(posed.problem, choices):
            held[boxing] = min(held.get(boxing, inf), peak)
    assert held
    for boxing, peak in held.items():
        assert state_bytes + counted.bytes(*boxing) <= peak, boxing


def test_a_copy_and_what_it_is_made_from_are_there_at_once() -> None:
    posed = posed_layers(Mesh(tp=2))
    counted = OwnBoxings(posed)
    split, whole = Placement.parse("S(1)"), Placement.parse("B")
    types = (t for node in posed.problem.nodes for t in node.result_types if t)
    seen = 0
    for type_ in dict.fromkeys(types):
        if type_.ndim == 2 and type_.shape[1] % 2 == 0:
            copy = held_bytes(type_, whole, posed.problem.mesh)
            taken = counted.bytes(type_, split, whole)
            assert taken >= copy, "the copy itself"
            assert taken <= may_take(type_)
            seen += taken > copy
    assert seen, "columns are gathered one rank behind the other, then put in order"


def drawn(posed: Posed) -> tuple[list[int], set[Boxing]]:
    """Return some assignment, and those of its boxings that there are."""
    rng = random.Random(7)
    choices = [rng.randrange(len(node.choices)) for node in posed.problem.nodes]
    price = posed.problem.box_seconds
    found = {own for own in boxings_of(posed.problem, choices) if price(*own) < inf}
    assert len(found) > 5
    return choices, found


@pytest.mark.parametrize("room", [0.0, -1.0])
def test_what_is_known_keeps_its_boxings_and_no_other_is_over(room: float) -> None:
    posed = posed_layers(Mesh(dp=2, tp=2), 4)
    choices, known = drawn(posed)
    prices = WithinBytes.of(posed, room, choices)
    for boxing in known:
        assert prices(*boxing) == posed.problem.box_seconds(*boxing)
    for type_, made, want in known:
        ends = [made, want]
        table = prices.table(type_, ends, ends)
        assert table[0, 1] == prices(type_, made, want) < inf
        assert table[0, 0] == table[1, 1] == 0.0
        is_known = (type_, want, made) in known
        assert is_known or table[1, 0] == prices(type_, want, made) == inf


def test_with_room_for_all_prices_are_as_they_were() -> None:
    posed = posed_layers(Mesh(dp=2, tp=2), 4)
    choices, known = drawn(posed)
    before = posed.problem.box_seconds
    prices = WithinBytes.of(posed, inf, choices)
    for type_, made, want in known:
        ends = [made, want]
        table = price_table(before, type_, ends, ends)
        assert np.array_equal(prices.table(type_, ends, ends), table)
        assert prices(type_, made, want) == before(type_, made, want)


class Product(nn.Module):
    """One layer, whose weight has another shape than all that is made of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the loss of ``x`` ``[batch, 8]``."""
        return self.layer(x).square().mean()


def test_what_prices_mark_is_counted_as_what_they_do_not() -> None:
    hardware = machine(flops_per_s=1e8, bytes_per_s=1e6, overlap=0.9)
    posed = planner(
        Product(), torch.randn(64, 8), mesh=Mesh(tp=2), hardware=hardware
    ).posed
    messages = MessagesBeside.of(posed.fold, hardware)
    assert messages is not None
    beside = replace(posed, problem=messages.fold.problem)
    types = [t for node in beside.problem.nodes for t in node.result_types if t]
    plain = TensorType((16, 8), torch.float32)
    assert plain not in types
    assert Unawaited(plain.shape, plain.dtype) in types
    ends = [Placement.parse("S(0)"), Placement.parse("B")]
    for one in (beside, posed):
        prices = WithinBytes.of(one, 0.0, [0] * len(one.problem.nodes))
        assert prices.own is beside.known(OwnBoxings)
        assert prices.table(plain, ends, ends)[0, 1] == inf
        assert prices(plain, *ends) == inf
