"""What one rank holds at each moment of a step, tensor by tensor.

A moment is one node, one part of a boxing, or what comes after the program: the
gradients are handed over, clipped, the optimizer steps. What is held in a moment is
all that exists while it runs, its operands, results and workspace among it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from partita.compiler.plan.units import format_bytes, printable

_MOST_ROWS = 12  # of the largest tensors, in print


class Category(StrEnum):
    """What memory is held for."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    BUFFERS = "buffers"  # and the constants that the model's code made
    INPUTS = "inputs"
    SAVED = "saved activations"  # made in the forward, used in the backward
    TEMPORARIES = "temporaries"  # used in the half in which they are made
    BOXING = "boxing"  # made by changes of placement
    WORKSPACE = "workspace"  # inside one kernel


class Held(NamedTuple):
    """Memory that is held from one moment to another, both among them.

    ``key`` is that of the node or boxing that makes it, or the name of a parameter,
    buffer or input.
    """

    key: str
    category: Category
    num_bytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Timeline:
    """The memory of one rank over a step.

    ``moments`` are their names, in order; ``held`` counts them from 0. ``messages`` has
    by boxing, or the first of a bucket, the bytes of what comes of its messages.

    >>> held = (Held("w", Category.PARAMETERS, 8, 0, 1),
    ...         Held("mm/0", Category.TEMPORARIES, 4, 1, 1))
    >>> step = Timeline(("input:x", "mm/0"), held)
    >>> step.bytes_at, step.peak_bytes, step.moments[step.peak]
    ((8, 12), 12, 'mm/0')
    """

    moments: tuple[str, ...]
    held: tuple[Held, ...]
    messages: Mapping[str, int] = field(default_factory=dict[str, int])

    @cached_property
    def bytes_at(self) -> tuple[int, ...]:
        """The bytes held at each moment."""
        change = [0] * (len(self.moments) + 1)
        for item in self.held:
            change[item.first] += item.num_bytes
            change[item.last + 1] -= item.num_bytes
        return tuple(accumulate(change[:-1]))

    @cached_property
    def peak(self) -> int:
        """The first of the moments at which most is held."""
        return max(range(len(self.moments)), key=self.bytes_at.__getitem__)

    @property
    def peak_bytes(self) -> int:
        """The most bytes that are held at one moment."""
        return self.bytes_at[self.peak]

    @property
    def saved_bytes(self) -> int:
        """What lies between the forward and the backward of one microbatch."""
        saved = (h for h in self.held if h.category is Category.SAVED)
        return sum(item.num_bytes for item in saved)

    def alive(self, moment: int) -> tuple[Held, ...]:
        """Return what is held at a moment, the largest first."""
        found = (h for h in self.held if h.first <= moment <= h.last and h.num_bytes)
        return tuple(sorted(found, key=lambda item: (-item.num_bytes, item.key)))

    def __str__(self) -> str:
        """Print the moment that needs most, by category, and its largest tensors."""
        parts = self.at_peak.items()
        largest = self.alive(self.peak)
        lines = [
            f"peak    {format_bytes(self.peak_bytes)} at {self.moments[self.peak]}, "
            f"moment {self.peak + 1} of {len(self.moments)}",
            *(f"{format_bytes(size):>10}  {category}" for category, size in parts),
            f"largest of the {len(largest)} that are held then",
            *(
                f"{format_bytes(item.num_bytes):>10}  {item.key} ({item.category}), "
                f"moments {item.first + 1} to {item.last + 1}"
                for item in largest[:_MOST_ROWS]
            ),
        ]
        return "\n".join(printable(line) for line in lines)

    @cached_property
    def at_peak(self) -> dict[str, int]:
        """The bytes that are held then, by category."""
        parts = self.by_category(self.peak)
        return {str(category): size for category, size in parts.items()}

    def by_category(self, moment: int) -> dict[Category, int]:
        """Return the bytes held at a moment, by category; what holds none left out."""
        totals: Counter[Category] = Counter()
        for item in self.alive(moment):
            totals[item.category] += item.num_bytes
        return {category: totals[category] for category in Category if totals[category]}
