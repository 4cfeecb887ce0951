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

Between processes on CPUs a gather, a scatter or an all-reduce may also be an exchange:
each rank hands to each other one what that is to have, and adds up by itself. Of a
gather and a scatter that is as many bytes and one pass over them more; but gloo runs a
reduce-scatter as an all-reduce of the whole, and builds what an all-gather brings twice
(torch 2.13, ProcessGroupGloo.cpp). Of an all-reduce, each rank sends all it has to each
other one: more bytes where there are more than two, but one message where a ring has
two rounds of them, so that a small sum is sooner there. ``passes/exchange_instead.py``
carries it out where the figures say that it is faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product

from partita.compiler.cost.arithmetic import NUMBERS, Arithmetic, Real
from partita.compiler.cost.compute import memory_s
from partita.compiler.hardware.device import Device
from partita.compiler.hardware.links import Algorithm, CollectiveCost, Leg
from partita.compiler.hardware.profile import CollectiveKind, Hardware
from partita.compiler.ir.mesh import Mesh

__all__ = [
    "REPEATED",
    "CollectiveCost",
    "CollectiveKind",
    "axis_seconds",
    "carried_out",
    "exchange_seconds",
    "is_exchanged",
    "may_be_exchanged",
    "seconds",
    "sent_bytes",
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
    size, legs = mesh.sizes[axis], hardware.legs(mesh, axis)
    found = seconds(kind, num_bytes, size, legs)
    if not may_be_exchanged(kind, hardware.device):
        return found
    return min(found, exchange_seconds(kind, num_bytes, size, legs, hardware.device))


def may_be_exchanged(kind: CollectiveKind, device: Device) -> bool:
    """Whether a collective may be carried out as an exchange."""
    return device.kind == "cpu" and kind in _EXCHANGED


@lru_cache(maxsize=1 << 14)
def is_exchanged(
    kind: CollectiveKind, num_bytes: int, mesh: Mesh, axis: int, hardware: Hardware
) -> bool:
    """Whether the groups of ``axis`` carry a collective out as an exchange.

    ``num_bytes`` as in ``axis_seconds``.
    """
    if not may_be_exchanged(kind, hardware.device):
        return False
    own_s = seconds(kind, num_bytes, mesh.sizes[axis], hardware.legs(mesh, axis))
    return axis_seconds(kind, num_bytes, mesh, axis, hardware) < own_s


def carried_out(
    kind: CollectiveKind, payload_bytes: int, mesh: Mesh, axis: int, hardware: Hardware
) -> tuple[CollectiveKind, int]:
    """Return as what the groups of ``axis`` carry a collective out, and its payload."""
    size = mesh.sizes[axis]
    wire = wire_bytes(kind, payload_bytes, size)
    if not is_exchanged(kind, wire, mesh, axis, hardware):
        return kind, payload_bytes
    is_repeated = kind in REPEATED
    return CollectiveKind.ALL_TO_ALL, payload_bytes * (size if is_repeated else 1)


def sent_bytes(
    kind: CollectiveKind, num_bytes: int, mesh: Mesh, axis: int, hardware: Hardware
) -> int:
    """Return the bytes that a rank puts on the wire as a collective is carried out.

    ``num_bytes`` as in ``axis_seconds``; they differ of an all-reduce as an exchange.
    """
    is_sum = kind is CollectiveKind.ALL_REDUCE
    if not (is_sum and is_exchanged(kind, num_bytes, mesh, axis, hardware)):
        return num_bytes
    others = mesh.sizes[axis] - 1
    return others * (num_bytes * (others + 1) // (2 * others))


def exchange_seconds(
    kind: CollectiveKind,
    num_bytes: Real,
    size: Real,
    legs: tuple[Leg, ...],
    device: Device,
    on: Arithmetic = NUMBERS,
) -> Real:
    """Return how long a collective takes as an exchange; see ``seconds``.

    What a rank gathers is its shard copied for each, before; what it has of a sum is
    all that was exchanged added up, after: one pass over the whole and over a part. An
    all-reduce has both. Scatter and gather together are an all-reduce, and no faster
    than the machine's own or its exchange.
    """
    if kind is CollectiveKind.ALL_REDUCE:
        return _sum_exchanged_s(num_bytes, size, legs, device, on)
    exchanged_s = seconds(CollectiveKind.ALL_TO_ALL, num_bytes, size, legs, on)
    touched = num_bytes * (size + 1) / (size - 1)
    exchanged_s = exchanged_s + device.launch_s + memory_s(touched, device, on)
    both_s = on.least(
        seconds(CollectiveKind.ALL_REDUCE, 2 * num_bytes, size, legs, on),
        _sum_exchanged_s(2 * num_bytes, size, legs, device, on),
    )
    return on.greatest(exchanged_s, both_s / 2)


def _sum_exchanged_s(
    num_bytes: Real, size: Real, legs: tuple[Leg, ...], device: Device, on: Arithmetic
) -> Real:
    sent = num_bytes * size / 2
    exchanged_s = seconds(CollectiveKind.ALL_TO_ALL, sent, size, legs, on)
    touched = sent * (size + 1) / (size - 1)
    return exchanged_s + 2 * (device.launch_s + memory_s(touched, device, on))


REPEATED = (CollectiveKind.ALL_GATHER, CollectiveKind.ALL_REDUCE)
"""What is put in for each rank of the group when they are exchanged."""

_EXCHANGED = (*REPEATED, CollectiveKind.REDUCE_SCATTER)


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
