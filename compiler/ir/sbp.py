"""Placements: per mesh axis ``S(dim)``, ``B`` or ``P(reduction)``.

The vocabulary is OneFlow's SBP (Yuan et al., "OneFlow: Redesign the Distributed
Deep Learning Framework from Scratch", arXiv:2110.15032, section 3.1), with two
additions: partial maximum and minimum, and segmented splits. ``S(1; 4|4|2)``
splits each of the segments 4, 4 and 2 of dim 1 by itself, so that a rank holds
its chunk of every segment: what a fused q|k|v weight needs.

What prints parses: ``Placement.parse(str(p)) == p``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from itertools import accumulate, groupby

from partita.compiler.errors import BadPlacement


class Reduction(StrEnum):
    """How the values of the ranks join to the logical value."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"


@dataclass(frozen=True, slots=True)
class Split:
    """The ranks of the axis hold chunks of dim ``dim``, by ``torch.chunk``'s rule.

    With ``segments`` (sizes that add up to the dim) each segment is chunked by
    itself and a rank holds its chunk of every segment, concatenated.

    >>> str(Split(0)), str(Split(1, (4, 4, 2))), str(Split(0, (8,) * 6))
    ('S(0)', 'S(1; 4|4|2)', 'S(0; 8*6)')
    """

    dim: int
    segments: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.dim < 0:
            raise BadPlacement(f"S({self.dim}): dims are counted from 0")
        if len(self.segments) == 1:
            object.__setattr__(self, "segments", ())
        if any(size < 1 for size in self.segments):
            raise BadPlacement(f"S({self.dim}): segments {self.segments} must be >= 1")

    def __str__(self) -> str:
        if not self.segments:
            return f"S({self.dim})"
        runs = [(size, len(list(run))) for size, run in groupby(self.segments)]
        parts = [
            f"{size}*{count}" if count > 3 else "|".join([str(size)] * count)
            for size, count in runs
        ]
        return f"S({self.dim}; {'|'.join(parts)})"


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Every rank of the axis holds the whole value.

    >>> str(Broadcast())
    'B'
    """

    def __str__(self) -> str:
        return "B"


@dataclass(frozen=True, slots=True)
class Partial:
    """The logical value is the reduction over the ranks of the axis.

    >>> str(Partial()), str(Partial(Reduction.MAX))
    ('P(sum)', 'P(max)')
    """

    reduction: Reduction = Reduction.SUM

    def __str__(self) -> str:
        return f"P({self.reduction})"


Sharding = Split | Broadcast | Partial
"""What one mesh axis does to a tensor."""

_SHARDING = re.compile(
    r"\s*(?:S\(\s*(?P<dim>\d+)\s*(?:;\s*(?P<segments>[\d|*\s]+))?\)"
    r"|(?P<broadcast>B)"
    r"|P(?:\(\s*(?P<reduction>\w*)\s*\))?(?P<partial>))\s*"
)


def _parse_segments(text: str, whole: str) -> tuple[int, ...]:
    sizes: list[int] = []
    for part in text.split("|"):
        match = re.fullmatch(r"\s*(\d+)(?:\*(\d+))?\s*", part)
        if match is None:
            raise BadPlacement(
                f"placement {whole!r}: segment {part!r} is not SIZE or SIZE*N"
            )
        sizes += [int(match[1])] * int(match[2] or 1)
    return tuple(sizes)


def _sharding_of(match: re.Match[str], whole: str) -> Sharding:
    if match["broadcast"]:
        return Broadcast()
    if match["dim"] is not None:
        segments = (
            _parse_segments(match["segments"], whole) if match["segments"] else ()
        )
        return Split(int(match["dim"]), segments)
    name = match["reduction"] or "sum"
    if name not in {reduction.value for reduction in Reduction}:
        raise BadPlacement(
            f"placement {whole!r}: P({name}) is not one of P(sum), P(max), P(min)"
        )
    return Partial(Reduction(name))


def _refines(fine: tuple[int, ...], coarse: tuple[int, ...]) -> bool:
    """Whether every boundary between ``coarse`` segments is one of ``fine`` too."""
    return set(accumulate(coarse[:-1])) <= set(accumulate(fine[:-1]))


@dataclass(frozen=True, slots=True)
class Placement:
    """One sharding per mesh axis, applied from the first axis to the last.

    Where several axes split one dim, a later axis chunks each run of indices that the
    earlier ones left, cut at its own segment boundaries first: ``(S(0), S(0; 8*4))``
    on 32 tokens of 4 sequences splits the sequences, then each sequence's tokens.

    >>> p = Placement.parse("(S(0), P(sum))")
    >>> p == Placement((Split(0), Partial())), str(p)
    (True, '(S(0), P(sum))')
    >>> str(Placement.broadcast(1)), Placement.parse("(B,)") == Placement.parse("B")
    ('(B,)', True)
    """

    shardings: tuple[Sharding, ...]
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # The search keys its tables by placements: their hash is asked for often.
        object.__setattr__(self, "_hash", hash(self.shardings))
        seen: dict[int, Split] = {}
        for sharding in self.shardings:
            if isinstance(sharding, Split):
                outer = seen.setdefault(sharding.dim, sharding)
                if not _refines(sharding.segments, outer.segments):
                    raise BadPlacement(
                        f"{self}: {sharding} cuts across the segments of {outer}; a "
                        "later axis may only split the same segments or finer ones"
                    )
                seen[sharding.dim] = sharding

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[object, tuple[tuple[Sharding, ...]]]:
        # Python gives strings, and so reductions, another hash in each process.
        return Placement, (self.shardings,)

    @classmethod
    def broadcast(cls, ndim: int) -> Placement:
        """Return ``B`` on each of ``ndim`` mesh axes."""
        return cls((Broadcast(),) * ndim)

    @classmethod
    def parse(cls, text: str) -> Placement:
        """Read ``"(S(0), B)"``, or one sharding alone for a 1-D mesh.

        Raises:
            BadPlacement: when the text is no placement.
        """
        body = text.strip()
        if body.startswith("(") and body.endswith(")"):
            body = body[1:-1].strip().removesuffix(",")
        shardings: list[Sharding] = []
        position = 0
        while True:
            match = _SHARDING.match(body, position)
            if match is None:
                raise BadPlacement(
                    f"placement {text!r}: found {body[position:]!r}; want one of "
                    "S(dim), S(dim; a|b|...), B, P(sum|max|min) per mesh axis"
                )
            shardings.append(_sharding_of(match, text))
            position = match.end()
            if position == len(body):
                return cls(tuple(shardings))
            if body[position] != ",":
                raise BadPlacement(
                    f"placement {text!r}: want ',' at {body[position:]!r}"
                )
            position += 1

    def __str__(self) -> str:
        return _printed(self)

    @property
    def ndim(self) -> int:
        """The number of mesh axes."""
        return len(self.shardings)

    @property
    def is_broadcast(self) -> bool:
        """Whether every rank holds the whole value."""
        return all(isinstance(sharding, Broadcast) for sharding in self.shardings)

    @property
    def has_partial(self) -> bool:
        """Whether some axis still owes a reduction."""
        return any(isinstance(sharding, Partial) for sharding in self.shardings)

    def axes_splitting(self, dim: int) -> tuple[int, ...]:
        """Return the mesh axes that split ``dim``, in the order they apply."""
        return tuple(
            axis
            for axis, sharding in enumerate(self.shardings)
            if isinstance(sharding, Split) and sharding.dim == dim
        )

    def with_axis(self, axis: int, sharding: Sharding) -> Placement:
        """Return this placement with another sharding on one axis."""
        parts = list(self.shardings)
        parts[axis] = sharding
        return Placement(tuple(parts))


@lru_cache(maxsize=1 << 14)
def _printed(placement: Placement) -> str:
    """Return what a placement prints: plans name thousands of boxings by few."""
    inner = ", ".join(str(sharding) for sharding in placement.shardings)
    return f"({inner},)" if len(placement.shardings) == 1 else f"({inner})"
