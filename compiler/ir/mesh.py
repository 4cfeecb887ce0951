"""A mesh: named axes of ranks, slowest links first.

Ranks are numbered row-major over the axes, as ``torch.distributed``'s DeviceMesh
numbers them, so the last axis joins neighbours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import product
from math import prod

from partita.compiler.errors import BadMesh

_AXIS_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_SIZE = re.compile(r"[0-9]{1,18}")
MOST_RANKS = 1 << 20
"""No machine has more."""


@dataclass(frozen=True, slots=True, init=False)
class Mesh:
    """Named mesh axes and their sizes, e.g. ``Mesh(dp=2, tp=4)``.

    Raises:
        BadMesh: for no axis, a bad name, a size below one or too many ranks.

    >>> mesh = Mesh(dp=2, tp=2)
    >>> str(mesh), mesh.size, mesh.coordinates(3), mesh.groups("tp")
    ('dp=2,tp=2', 4, (1, 1), ((0, 1), (2, 3)))
    >>> Mesh.parse("dp=2,tp=2") == mesh
    True
    """

    axes: tuple[tuple[str, int], ...]
    names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """The axis names, slowest links first."""
    sizes: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """The number of ranks along each axis."""

    def __init__(self, **sizes: int) -> None:
        if not sizes:
            raise BadMesh("a mesh needs at least one axis, e.g. Mesh(dp=2)")
        for name, size in sizes.items():
            if not _AXIS_NAME.fullmatch(name):
                raise BadMesh(f"mesh axis {name!r} is not a name, e.g. 'dp' or 'tp'")
            if type(size) is not int or size < 1:
                raise BadMesh(f"mesh axis {name!r} has size {size!r}; want an int >= 1")
            if size > MOST_RANKS:  # perhaps of more digits than Python writes
                raise BadMesh(f"mesh axis {name!r}: want at most {MOST_RANKS} ranks")
        if prod(sizes.values()) > MOST_RANKS:
            text = ",".join(f"{name}={size}" for name, size in sizes.items())
            raise BadMesh(f"mesh {text} has too many ranks; want at most {MOST_RANKS}")
        object.__setattr__(self, "axes", tuple(sizes.items()))
        object.__setattr__(self, "names", tuple(sizes))
        object.__setattr__(self, "sizes", tuple(sizes.values()))

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """Read ``"dp=2,tp=4"``, the form that ``str`` prints.

        Raises:
            BadMesh: when the text has another form.
        """
        sizes: dict[str, int] = {}
        for part in text.split(","):
            name, equals, size = (piece.strip() for piece in part.partition("="))
            if not equals or not _SIZE.fullmatch(size):
                raise BadMesh(f"mesh {text!r}: found {part!r}; want NAME=SIZE, ...")
            if name in sizes:
                raise BadMesh(f"mesh {text!r}: axis {name!r} is named twice")
            sizes[name] = int(size)
        return cls(**sizes)

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.axes)

    def __repr__(self) -> str:
        return f"Mesh({', '.join(f'{name}={size}' for name, size in self.axes)})"

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Mesh.parse, (str(self),)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.axes)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return prod(self.sizes)

    def axis(self, name: str) -> int:
        """Return the position of the axis called ``name``.

        Raises:
            BadMesh: when the mesh has no such axis.
        """
        if name not in self.names:
            known = ", ".join(self.names)
            raise BadMesh(f"mesh {self} has no axis {name!r}; its axes are {known}")
        return self.names.index(name)

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Return where ``rank`` stands along each axis."""
        coords: list[int] = []
        for size in reversed(self.sizes):
            rank, coord = divmod(rank, size)
            coords.append(coord)
        return tuple(reversed(coords))

    def rank(self, coordinates: tuple[int, ...]) -> int:
        """Return the rank that stands at ``coordinates``."""
        rank = 0
        for size, coord in zip(self.sizes, coordinates, strict=True):
            rank = rank * size + coord
        return rank

    def all_coordinates(self) -> tuple[tuple[int, ...], ...]:
        """Return the coordinates of every rank, in the order of ranks."""
        return tuple(product(*(range(size) for size in self.sizes)))

    def groups(self, axis: str) -> tuple[tuple[int, ...], ...]:
        """Return the groups of ranks that differ only along ``axis``."""
        index = self.axis(axis)
        rows: dict[tuple[int, ...], list[int]] = {}
        for rank, coords in enumerate(self.all_coordinates()):
            rows.setdefault(coords[:index] + coords[index + 1 :], []).append(rank)
        return tuple(tuple(row) for row in rows.values())
