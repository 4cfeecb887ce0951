"""How long a rank takes for its items in order, messages that pass beside among them.

A rank goes on computing while a message passes that nobody waits for yet: the sum of a
gradient behind the backward, a parameter that is gathered before it is used. Messages
on one link pass one after another. While any passes, a rank gets ``overlap`` seconds of
computing done in a second, since both want the same memory and multiprocessors; where
that is 0 every message takes its time alone.

Source: S. Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel
Training", VLDB 2020, section 3.2.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol


class Timed(Protocol):
    """What takes time: a message where it has an ``axis``, else computing."""

    @property
    def key(self) -> str:
        """What it belongs to."""
        ...

    @property
    def seconds(self) -> float:
        """How long it takes by itself."""
        ...

    @property
    def axis(self) -> str | None:
        """The mesh axis that the message passes on."""
        ...

    @property
    def is_beside(self) -> bool:
        """Whether the next begins while it passes."""
        ...

    @property
    def is_behind(self) -> bool:
        """Whether it waits for the message of its key that passes beside."""
        ...


@dataclass(frozen=True, slots=True)
class Played:
    """When each item begins and ends, from the first on, and when all have ended.

    The rank can do other things from ``free_s`` on, while messages still pass.
    """

    times: tuple[tuple[float, float], ...]
    end_s: float
    free_s: float


def play(
    items: Iterable[Timed],
    overlap: float,
    link_of: Mapping[str, str] = MappingProxyType({}),
) -> Played:
    """Return when a rank does what, each item as soon as the one before lets it.

    Args:
        items: in order; behind a message that ``is_beside`` the next one begins.
        overlap: seconds of computing that get done in a second of such a message.
        link_of: by axis, the link that its messages share with those of others.

    >>> from collections import namedtuple
    >>> Item = namedtuple("Item", "key seconds axis is_beside is_behind")
    >>> mm = Item("mm", 3.0, None, False, False)
    >>> items = [Item("w", 2.0, "dp", True, False), mm]
    >>> [play(items, overlap).end_s for overlap in (0.0, 0.5, 1.0)]
    [5.0, 4.0, 3.0]
    >>> items += [Item("w", 0.0, None, False, True), mm._replace(seconds=1.0)]
    >>> [play(items, overlap).end_s for overlap in (0.0, 0.5, 1.0)]
    [6.0, 5.0, 4.0]
    """
    now = 0.0  # when the rank is free
    passed: dict[str, float] = {}  # by link, when its last message is there
    last = 0.0  # of all links
    there: dict[str, float] = {}  # by key, when the message that passes beside is
    times: list[tuple[float, float]] = []
    for item in items:
        if item.is_behind:
            now = max(now, there.get(item.key, now))
        if item.axis is None:
            start, now = now, _computed(now, item.seconds, last, overlap)
            times.append((start, now))
            continue
        link = link_of.get(item.axis, item.axis)
        # Without overlap a rank does one thing at a time.
        start = max(now, passed.get(link, 0.0) if overlap else last)
        end = passed[link] = start + item.seconds
        last = max(last, end)
        times.append((start, end))
        if item.is_beside:
            there[item.key] = end
        else:
            now = end
    return Played(tuple(times), max(now, last), now)


def _computed(now: float, seconds: float, passed: float, overlap: float) -> float:
    """Return when computing of so many seconds ends, with messages until ``passed``."""
    beside_s = max(0.0, passed - now)
    if seconds < overlap * beside_s:
        return now + seconds / overlap
    return max(now, passed) + seconds - overlap * beside_s
