"""The levels of a network, and what a collective costs on each.

A group that spans several levels passes all of them: its ``Leg`` on a level says how
many of the next lower units it joins there. Bandwidth is per rank: ranks of one node
that stand in one group use the node's network together, and those of other groups have
shares of their own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class CollectiveKind(StrEnum):
    """The collectives that boxings are lowered to."""

    ALL_GATHER = "all_gather"
    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"


class Algorithm(StrEnum):
    """How a collective is carried out; the cheapest that a link has is taken."""

    RING = "ring"  # each rank to the next, n - 1 times; all-to-all: in pairs
    TREE = "tree"  # all-reduce: up two binary trees and down again
    SWITCH = "switch"  # all-reduce: the switch adds up and sends to all
    CHAIN = "chain"  # all-reduce: within the nodes of a tree, along a line and back


@dataclass(frozen=True, slots=True)
class CollectiveCost:
    """What one algorithm of a collective costs on a link.

    Attributes:
        alpha_s: seconds per message step.
        bytes_per_s: wire bytes per second and rank.
        base_s: seconds per call.
        algorithm: how it is carried out, which says how many steps and bytes.
        by_size: bandwidth by how many the link joins, where it depends on that;
            between two sizes the nearest above counts.
        others: further algorithms and protocols of the same collective.
    """

    alpha_s: float
    bytes_per_s: float
    base_s: float = 0.0
    algorithm: Algorithm = Algorithm.RING
    by_size: tuple[tuple[int, float], ...] = ()
    others: tuple[CollectiveCost, ...] = ()

    def rate(self, size: int) -> float:
        """Return the bandwidth where the link joins ``size``.

        >>> cost = CollectiveCost(0.0, 50.0, by_size=((2, 40.0), (8, 10.0)))
        >>> [cost.rate(size) for size in (2, 4, 8, 16)]
        [40.0, 10.0, 10.0, 10.0]
        """
        if not self.by_size:
            return self.bytes_per_s
        sizes = [known for known, _ in self.by_size]
        return self.by_size[min(bisect_left(sizes, size), len(sizes) - 1)][1]


@dataclass(frozen=True, slots=True)
class Link:
    """A level of the network: it joins ``ranks`` neighbours, all ranks if ``None``."""

    name: str
    ranks: int | None
    costs: Mapping[CollectiveKind, CollectiveCost]


@dataclass(frozen=True, slots=True)
class Leg:
    """One level of a group's way.

    Attributes:
        link: the level.
        size: how many units of the level below it joins (ranks on the first).
        members: how many ranks of the group stand in one such unit; they use the
            link side by side.
    """

    link: Link
    size: int
    members: int


def legs_of(links: tuple[Link, ...], size: int, stride: int) -> tuple[Leg, ...]:
    """Return the levels that a group of ``size`` ranks, ``stride`` apart, passes.

    The lowest comes first. ``links`` are a profile's, slowest first.

    >>> node, net = Link("nvlink", 8, {}), Link("net", None, {})
    >>> [(leg.link.name, leg.size, leg.members) for leg in legs_of((net, node), 8, 2)]
    [('nvlink', 4, 1), ('net', 2, 4)]
    """
    legs: list[Leg] = []
    members = 1
    for link in reversed(links):
        ranks = size * stride if link.ranks is None else link.ranks
        within = size if ranks >= size * stride else max(1, ranks // stride)
        if within > members:
            legs.append(Leg(link, -(-within // members), members))
            members = within
    if not legs:  # a group of one rank
        return (Leg(links[-1], 1, 1),)
    return tuple(legs)
