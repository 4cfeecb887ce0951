"""Seconds to move a tensor from one stage's ranks to another's.

Links say what collectives cost. Of those an all-to-all is nothing but sends and
receives between pairs, over NCCL (user guide, "Point-to-point communication",
All-to-all) and over gloo (gloo/alltoallv.cc), so a message costs what one does between
two ranks: per message the step of the link's all-to-all, per byte its bandwidth where
it joins two. No profile has figures of sends alone.

A pair of ranks talks over the fastest link that joins both. Ranks send and receive at
once, what each does goes one after another, and the slowest counts. That transfers of
several tensors share a link is not counted here, nor are the copies into and out of
buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

from partita.compiler.hardware.links import CollectiveKind, Link
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.transfer import Placed, transfer


@lru_cache(maxsize=1 << 16)
def hop_seconds(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    source: Placed,
    target: Placed,
    hardware: Hardware,
) -> float:
    """Return how long the rank with most to send or to receive is busy.

    >>> from partita.compiler.hardware.profile import load_hardware
    >>> from partita.compiler.ir.mesh import Mesh
    >>> from partita.compiler.ir.sbp import Placement
    >>> source = Placed(Mesh(tp=1), (0,), Placement.parse("B"))
    >>> target = Placed(Mesh(tp=1), (1,), Placement.parse("B"))
    >>> machine = load_hardware("cpu-gloo")
    >>> round(hop_seconds((850_000,), torch.float32, source, target, machine), 5)
    0.00212

    Raises:
        BadPlacement: when a placement does not fit the shape and its mesh.
    """
    links = hardware.links
    sent: dict[int, dict[int, list[int]]] = {}
    received: dict[int, dict[int, list[int]]] = {}
    for message in transfer(shape, source, target):
        if message.on_wire:
            level = _level(links, message.sender, message.receiver)
            for end, rank in ((sent, message.sender), (received, message.receiver)):
                sizes = end.setdefault(rank, {}).setdefault(level, [])
                sizes.append(message.numel * dtype.itemsize)
    return max(
        (
            sum(_link_seconds(links[level], sizes) for level, sizes in busy.items())
            for end in (sent, received)
            for busy in end.values()
        ),
        default=0.0,
    )


def _level(links: Sequence[Link], rank: int, other: int) -> int:
    """Return the number of the fastest link, the last one, that joins two ranks."""
    return max(
        level
        for level, link in enumerate(links)
        if link.ranks is None or rank // link.ranks == other // link.ranks
    )


def _link_seconds(link: Link, sizes: Sequence[int]) -> float:
    """Return the seconds of messages of these bytes, one after another."""
    cost = link.costs[CollectiveKind.ALL_TO_ALL]
    return min(
        way.base_s + len(sizes) * way.alpha_s + sum(sizes) / way.rate(2)
        for way in (cost, *cost.others)
    )
