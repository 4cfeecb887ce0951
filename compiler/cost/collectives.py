"""Wire bytes and seconds of one collective: the cheapest algorithm counts.

Bandwidth terms: Thakur, Rabenseifner, Gropp, "Optimization of Collective
Communication Operations in MPICH", IJHPCA 19(1), 2005, sections 4.1 to 4.4; the same
factors as the bus bandwidths of nccl-tests (doc/PERFORMANCE.md). An all-reduce is a
reduce-scatter followed by an all-gather, hence twice everything. Trees: Sanders, Speck,
Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel
Computing 35(12), 2009. What steps within nodes and between them cost, and that the
cheapest algorithm is taken: NCCL's tuner (src/graph/tuning.cc).

A group that spans nodes may run one ring over all of its ranks, as fast as its slowest
link, or, to add up, the hierarchy of a tree over nodes and a chain or a switch within
each: fewer bytes on the network, since what leaves a node is added up already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product

from partita.compiler.cost.arithmetic import NUMBERS, Arithmetic, Real
from partita.compiler.hardware.links import Algorithm, CollectiveCost, Leg
from partita.compiler.hardware.profile import CollectiveKind, Hardware
from partita.compiler.ir.mesh import Mesh

__all__ = [
    "CollectiveCost",
    "CollectiveKind",
    "axis_seconds",
    "seconds",
    "wire_bytes",
]


def wire_bytes(kind: CollectiveKind, payload_bytes: int, size: int) -> int:
    """Return the bytes that each of ``size`` ranks sends, rounded up.

    ``payload_bytes`` is what one rank puts into the functional collective: its shard
    for an all-gather, its whole input for the others.

    >>> wire_bytes(CollectiveKind.ALL_REDUCE, 1024, 4)
    1536
    """
    if kind is CollectiveKind.ALL_GATHER:
        return (size - 1) * payload_bytes
    rounds = 2 if kind is CollectiveKind.ALL_REDUCE else 1
    return -(-rounds * (size - 1) * payload_bytes // size)


@lru_cache(maxsize=1 << 18)
def axis_seconds(
    kind: CollectiveKind, num_bytes: int, mesh: Mesh, axis: int, hardware: Hardware
) -> float:
    """Return how long the groups of ``axis`` take when nothing else disturbs them.

    ``num_bytes`` are those of the rank that sends most, as ``wire_bytes`` counts them.
    """
    return seconds(kind, num_bytes, mesh.sizes[axis], hardware.legs(mesh, axis))


def seconds(
    kind: CollectiveKind,
    num_bytes: Real,
    size: Real,
    legs: tuple[Leg, ...],
    on: Arithmetic = NUMBERS,
) -> Real:
    """Return how long a group takes by the cheapest algorithm of its links.

    Args:
        kind: the collective.
        num_bytes: what each rank sends in a ring, or all it sends in an exchange.
        size: how many ranks the group has, two at least.
        legs: the levels that it spans, the lowest first.
        on: the arithmetic of ``num_bytes`` and ``size``.
    """
    found = [
        _ring_s(kind, num_bytes, size, legs, costs, on)
        for costs in product(*(_costs(leg, kind, Algorithm.RING) for leg in legs))
    ]
    if kind is CollectiveKind.ALL_REDUCE:
        whole = num_bytes * size / (2 * (size - 1))
        if len(legs) == 1:
            found += _flat_reductions(whole, size, legs[0], on)
        else:
            found += _hierarchies(whole, legs, on)
    return on.least(*found)


def _costs(
    leg: Leg, kind: CollectiveKind, *algorithms: Algorithm
) -> list[CollectiveCost]:
    cost = leg.link.costs[kind]
    return [c for c in (cost, *cost.others) if c.algorithm in algorithms]


def _ring_s(
    kind: CollectiveKind,
    num_bytes: Real,
    size: Real,
    legs: tuple[Leg, ...],
    costs: Sequence[CollectiveCost],
    on: Arithmetic,
) -> Real:
    """Return the seconds of one ring over all ranks, or of an exchange in pairs.

    A ring's link between two nodes carries as much as one within them, and the ranks
    of a node that stand in the group share that. In an exchange each rank sends what
    is for other nodes by itself.
    """
    busy: list[Real] = []
    rounds = 2 if kind is CollectiveKind.ALL_REDUCE else 1
    latency_s: Real = costs[-1].base_s
    for number, (leg, cost) in enumerate(zip(legs, costs, strict=True)):
        if kind is CollectiveKind.ALL_TO_ALL:
            crossing = num_bytes * (size - leg.members) / (size - 1)
        else:
            crossing = num_bytes / leg.members
        busy.append(crossing / cost.rate(leg.size))
        units = on.up(size, leg.members)
        is_last = number == len(legs) - 1
        above = 1 if is_last else on.up(size, legs[number + 1].members)
        latency_s = latency_s + rounds * (units - above) * cost.alpha_s
    return latency_s + on.greatest(*busy)


def _flat_reductions(
    whole: Real, size: Real, leg: Leg, on: Arithmetic
) -> Iterator[Real]:
    """Yield the seconds of all-reduces of ``whole`` bytes by trees or by a switch.

    Of two trees a rank passes on as much as in a ring. Into a switch it puts all it
    has, and its share of the sum, which the switch copies.
    """
    for cost in _costs(leg, CollectiveKind.ALL_REDUCE, Algorithm.TREE):
        steps, crossing = 2 * on.log2_up(size), 2 * (size - 1) * whole / size
        yield cost.base_s + steps * cost.alpha_s + crossing / cost.rate(leg.size)
    for cost in _costs(leg, CollectiveKind.ALL_REDUCE, Algorithm.SWITCH):
        crossing = (size + 1) * whole / size
        yield cost.base_s + 2 * cost.alpha_s + crossing / cost.rate(leg.size)


def _hierarchies(whole: Real, legs: tuple[Leg, ...], on: Arithmetic) -> Iterator[Real]:
    """Yield the seconds of all-reduces by trees over the units of the last level.

    A chain or a switch adds up what is within a unit, all parts of ``whole`` under way
    at once.
    """
    *lower, top = legs
    below = [
        _costs(leg, CollectiveKind.ALL_REDUCE, Algorithm.CHAIN, Algorithm.SWITCH)
        for leg in lower
    ]
    trees = _costs(top, CollectiveKind.ALL_REDUCE, Algorithm.TREE)
    for *inner, outer in product(*below, trees):
        crossing = 2 * (top.size - 1) * whole / top.size / top.members
        busy: list[Real] = [crossing / outer.rate(top.size)]
        latency_s = outer.base_s + 2 * on.log2_up(top.size) * outer.alpha_s
        for leg, cost in zip(lower, inner, strict=True):
            if cost.algorithm is Algorithm.SWITCH:
                steps, crossing = 2, (leg.size + 1) * whole / leg.size
            else:
                steps, crossing = 2 * (leg.size - 1), 2 * whole
            latency_s = latency_s + steps * cost.alpha_s
            busy.append(crossing / leg.members / cost.rate(leg.size))
        yield latency_s + on.greatest(*busy)
