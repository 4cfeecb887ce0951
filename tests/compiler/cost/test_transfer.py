from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from partita.compiler.cost.collectives import seconds
from partita.compiler.cost.transfer import hop_seconds
from partita.compiler.hardware.device import Device
from partita.compiler.hardware.links import (
    CollectiveCost,
    CollectiveKind,
    Link,
    legs_of,
)
from partita.compiler.hardware.profile import Hardware, load_hardware, profile_names
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.transfer import Placed

F32 = torch.float32
SELENE = load_hardware("a100-80gb-selene")


def link(name: str, ranks: int | None, cost: CollectiveCost) -> Link:
    free = CollectiveCost(0.0, 1e30)
    costs = dict.fromkeys(CollectiveKind, free) | {CollectiveKind.ALL_TO_ALL: cost}
    return Link(name, ranks, costs)


# Nodes of four ranks; of two protocols one starts sooner, the other is faster.
BY_HAND = Hardware(
    name="by-hand",
    source="made up",
    device=Device("cpu", {"f32": 1e9}, 1e9, 1 << 30, 0.0),
    links=(
        link(
            "net",
            None,
            CollectiveCost(
                2.0, 10.0, others=(CollectiveCost(2.0, 100.0, base_s=100.0),)
            ),
        ),
        link(
            "node", 4, CollectiveCost(1.0, 1.0, base_s=0.5, by_size=((2, 40), (4, 20)))
        ),
    ),
)


def on(ranks: tuple[int, ...], placement: str) -> Placed:
    return Placed(Mesh(a=len(ranks)), ranks, Placement.parse(placement))


def by_hand(numel: int, source: Placed, target: Placed) -> float:
    return hop_seconds((numel, 2), F32, source, target, BY_HAND)


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        # 20 rows of 8 bytes, within a node, and over the net
        (on((0,), "B"), on((1,), "B"), 0.5 + 1 + 160 / 40),
        (on((3,), "B"), on((4,), "B"), 2 + 160 / 10),
        # the sender is busy longest, then the receiver
        (on((0,), "B"), on((1, 2), "B"), 0.5 + 2 + 320 / 40),
        (on((1, 2), "S(0)"), on((0,), "B"), 0.5 + 2 + 160 / 40),
        # each sends a half and receives a half at the same time
        (on((0, 1), "S(0)"), on((1, 0), "S(0)"), 0.5 + 1 + 80 / 40),
        # one message over each link
        (on((0,), "B"), on((1, 4), "S(0)"), 0.5 + 1 + 80 / 40 + 2 + 80 / 10),
        # two senders at once
        (on((0, 1), "B"), on((2, 3), "B"), 0.5 + 1 + 160 / 40),
    ],
)
def test_the_slowest_rank_counts(
    source: Placed, target: Placed, expected: float
) -> None:
    assert by_hand(20, source, target) == pytest.approx(expected)


def test_the_cheapest_protocol_counts() -> None:
    source, target = on((0,), "B"), on((4,), "B")
    assert by_hand(1000, source, target) == pytest.approx(100 + 2 + 8000 / 100)


@pytest.mark.parametrize("name", profile_names())
@pytest.mark.parametrize("stride", [1, 8])
def test_a_message_costs_what_two_ranks_exchange(name: str, stride: int) -> None:
    hardware = load_hardware(name)
    exchange = CollectiveKind.ALL_TO_ALL
    legs = legs_of(hardware.links, 2, stride)
    for numel in (1, 1 << 10, 1 << 20, 1 << 28):
        found = hop_seconds((numel,), F32, on((0,), "B"), on((stride,), "B"), hardware)
        assert found == pytest.approx(seconds(exchange, 4 * numel, 2, legs))


def test_twice_the_bytes_take_twice_as_long_in_the_end() -> None:
    source, target = on((0, 1), "S(0)"), on((8, 9, 10, 11), "S(1)")
    taken = [
        hop_seconds((1 << rows, 4096), F32, source, target, SELENE)
        for rows in range(4, 21)
    ]
    growth = [b / a for a, b in pairwise(taken)]
    assert growth == sorted(growth)
    assert growth[0] < 1.5
    assert growth[-1] == pytest.approx(2, rel=1e-3)


@pytest.mark.parametrize("rows", [1, 1 << 10, 1 << 20])
def test_between_nodes_takes_longer_than_within_one(rows: int) -> None:
    within, between = on((7,), "B"), on((8,), "B")
    source, shape = on((6,), "B"), (rows, 16)
    near = hop_seconds(shape, F32, source, within, SELENE)
    assert near < hop_seconds(shape, F32, source, between, SELENE)


def test_what_stays_where_it_is_takes_no_time() -> None:
    both = on((0, 1), "S(0)")
    assert hop_seconds((8, 8), F32, both, both, SELENE) == 0
    assert hop_seconds((0, 8), F32, both, on((8,), "B"), SELENE) == 0
    whole = on((0, 1), "B")
    assert hop_seconds((8, 8), F32, whole, on((1,), "B"), SELENE) == 0
