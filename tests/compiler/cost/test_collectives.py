from math import inf
from typing import Any

import pytest

from partita.compiler.cost.collectives import (
    CollectiveKind,
    axis_seconds,
    seconds,
    wire_bytes,
)
from partita.compiler.hardware.device import Device
from partita.compiler.hardware.links import (
    Algorithm,
    CollectiveCost,
    Leg,
    Link,
    legs_of,
)
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.mesh import Mesh

GATHER, REDUCE, SCATTER, EXCHANGE = (
    CollectiveKind.ALL_GATHER,
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
)


def link(name: str, ranks: int | None, cost: CollectiveCost) -> Link:
    return Link(name, ranks, dict.fromkeys(CollectiveKind, cost))


def alone(cost: CollectiveCost, size: int) -> tuple[Leg, ...]:
    return (Leg(link("wire", None, cost), size, 1),)


@pytest.mark.parametrize(
    ("kind", "payload", "size", "expected"),
    [
        (GATHER, 100, 4, 300),
        (REDUCE, 100, 4, 150),
        (SCATTER, 100, 4, 75),
        (EXCHANGE, 100, 4, 75),
        (REDUCE, 4, 3, 6),  # 16 / 3, rounded up
        (GATHER, 100, 1, 0),
        (REDUCE, 100, 1, 0),
    ],
)
def test_wire_bytes_are_those_of_a_ring(
    kind: CollectiveKind, payload: int, size: int, expected: int
) -> None:
    assert wire_bytes(kind, payload, size) == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (GATHER, 0.25 + 3 * 0.5 + 3 * 800 / 100),
        (REDUCE, 0.25 + 6 * 0.5 + 2 * 3 / 4 * 800 / 100),
        (SCATTER, 0.25 + 3 * 0.5 + 3 / 4 * 800 / 100),
        (EXCHANGE, 0.25 + 3 * 0.5 + 3 / 4 * 800 / 100),
    ],
)
def test_ring_is_a_base_steps_and_bytes(kind: CollectiveKind, expected: float) -> None:
    cost = CollectiveCost(alpha_s=0.5, bytes_per_s=100, base_s=0.25)
    wire = wire_bytes(kind, 800, 4)
    assert seconds(kind, wire, 4, alone(cost, 4)) == pytest.approx(expected)


TREE = CollectiveCost(0.5, 50.0, base_s=1.0, algorithm=Algorithm.TREE)
SWITCH = CollectiveCost(2.0, 80.0, base_s=3.0, algorithm=Algorithm.SWITCH)


@pytest.mark.parametrize(
    ("whole", "other", "expected"),
    [
        # of 8 ranks: three levels of a tree, twice
        (1, TREE, 1.0 + 2 * 3 * 0.5 + 2 * 7 / 8 / 50),
        # all of it and an eighth of the sum, through the switch
        (8000, SWITCH, 3.0 + 2 * 2.0 + 9000 / 80),
        # a ring is as good for much
        (8000, TREE, 14 * 0.5 + 14000 / 100),
    ],
)
def test_cheapest_algorithm_reduces(
    whole: int, other: CollectiveCost, expected: float
) -> None:
    cost = CollectiveCost(0.5, 100.0, others=(other,))
    wire = 2 * 7 * whole / 8
    assert seconds(REDUCE, wire, 8, alone(cost, 8)) == pytest.approx(expected)


def test_protocols_of_a_ring_cross_over() -> None:
    small = CollectiveCost(0.1, 10.0)
    cost = CollectiveCost(1.0, 100.0, others=(small,))
    legs = alone(cost, 2)
    assert seconds(GATHER, 1, 2, legs) == pytest.approx(0.1 + 1 / 10)
    assert seconds(GATHER, 1000, 2, legs) == pytest.approx(1.0 + 1000 / 100)


NODE = CollectiveCost(0.5, 100.0)
NET = CollectiveCost(2.0, 10.0, base_s=4.0)
LINKS = (link("net", None, NET), link("node", 4, NODE))


@pytest.mark.parametrize(
    ("size", "stride", "legs"),
    [
        (4, 1, [("node", 4, 1)]),
        (8, 1, [("node", 4, 1), ("net", 2, 4)]),
        (4, 2, [("node", 2, 1), ("net", 2, 2)]),
        (4, 4, [("net", 4, 1)]),
        (6, 1, [("node", 4, 1), ("net", 2, 4)]),  # a node and a half
        (1, 4, [("node", 1, 1)]),
    ],
)
def test_group_passes_the_levels_that_it_spans(
    size: int, stride: int, legs: list[tuple[str, int, int]]
) -> None:
    found = legs_of(LINKS, size, stride)
    assert [(leg.link.name, leg.size, leg.members) for leg in found] == legs


@pytest.mark.parametrize("stride", [1, 2, 4])
def test_ranks_of_a_node_in_one_group_share_its_network(stride: int) -> None:
    # 8 ranks, of which 4 / stride stand in a node
    members = 4 // stride
    wire = 7 * 1000.0
    on_net = wire / members / 10.0
    units = 8 // members
    steps_s = (8 - units) * 0.5 + (units - 1) * 2.0
    expected = 4.0 + steps_s + max(on_net, wire / 100.0 if stride < 4 else 0.0)
    legs = legs_of(LINKS, 8, stride)
    assert seconds(GATHER, wire, 8, legs) == pytest.approx(expected)


def test_exchange_sends_what_is_for_other_nodes_by_itself() -> None:
    # 8 ranks on 2 nodes: of 7 shares that a rank sends, 4 leave the node
    expected = 4.0 + (8 - 2) * 0.5 + 2.0 + 400 / 10.0
    assert seconds(EXCHANGE, 700, 8, legs_of(LINKS, 8, 1)) == pytest.approx(expected)


def test_hierarchy_sends_less_between_nodes() -> None:
    node = CollectiveCost(0.5, 100.0, others=(SWITCH,))
    net = CollectiveCost(
        2.0, 10.0, others=(CollectiveCost(1.0, 9.0, 5.0, Algorithm.TREE),)
    )
    legs = legs_of((link("net", None, net), link("node", 4, node)), 8, 1)
    # 2 nodes: each sends the sum's bytes once, by 4 ranks side by side
    between, within = 8000 / 4 / 9.0, 5 / 4 * 8000 / 80.0
    expected = 5.0 + 2 * 1.0 + 2 * 2.0 + max(between, within)
    assert seconds(REDUCE, 14000, 8, legs) == pytest.approx(expected)
    assert expected < 14000 / 4 / 10.0  # what the ring of 8 takes


def test_bandwidth_may_depend_on_how_many_are_joined() -> None:
    cost = CollectiveCost(0.0, inf, by_size=((2, 100.0), (4, 50.0)))
    rates = [1200 / seconds(GATHER, 1200, n, alone(cost, n)) for n in (2, 3, 4, 8)]
    assert rates == pytest.approx([100.0, 50.0, 50.0, 50.0])


def test_axis_is_priced_on_the_links_of_its_groups() -> None:
    document: dict[str, Any] = {"f32": 1.0}
    device = Device("cuda", document, 1.0, 1, 0.0)
    hardware = Hardware("by hand", "test", device, LINKS)
    mesh = Mesh(dp=2, tp=4)
    assert axis_seconds(GATHER, 300, mesh, 1, hardware) == pytest.approx(1.5 + 3.0)
    assert axis_seconds(GATHER, 300, mesh, 0, hardware) == pytest.approx(6.0 + 30.0)
