"""The steps between one tensor's placements, whatever the machine that makes them.

Many of them cost the same on any machine: on one axis, between the same shardings, of
what the other axes leave alike. These are of one *kind*, which is priced once.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from partita.compiler.cost.step import (
    Step,
    find_step,
    is_uneven_exchange,
    local_copies,
    step_wire_bytes,
)
from partita.compiler.errors import BadPlacement
from partita.compiler.ir.layout import largest_shard_shape
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Broadcast, Placement, Sharding, Split
from partita.compiler.ir.tensor_type import TensorType

Ints = npt.NDArray[np.int64]

Options = tuple[tuple[Sharding, ...], ...]
"""Per mesh axis, the shardings that a placement may have there."""


class Move(NamedTuple):
    """A step, and the number of its kind."""

    step: Step
    kind: int


class Kind(NamedTuple):
    """One of the steps that cost the same, and what a rank does in each.

    Attributes:
        step: one of them.
        wire: the bytes that it sends.
        copies: how many copies it makes by itself, and the bytes that they touch.
    """

    step: Step
    wire: int
    copies: tuple[int, int]


@lru_cache(maxsize=1 << 12)
def moves_of(type: TensorType, mesh: Mesh) -> Moves:
    """Return the steps between the placements of a tensor of logical ``type``."""
    return Moves(type, mesh)


class Moves:
    """The steps between one tensor's placements, each found once; see ``moves_of``."""

    def __init__(self, type: TensorType, mesh: Mesh) -> None:
        self.type = type
        self.mesh = mesh
        self.kinds: list[Kind] = []
        self._known: dict[tuple[Placement, int, Sharding], Move | None] = {}
        self._numbers: dict[object, int] = {}
        self._left: dict[tuple[Sharding | None, ...], tuple[int, ...]] = {}
        self._grids: dict[Options, tuple[Ints, ...]] = {}

    def get(self, before: Placement, axis: int, sharding: Sharding) -> Move | None:
        """Return the step that gives ``axis`` another sharding, if there is one."""
        key = (before, axis, sharding)
        if key not in self._known:
            try:
                after = before.with_axis(axis, sharding)
            except BadPlacement:  # it would cut across another axis's segments
                self._known[key] = None
            else:
                self._known[key] = self._find(before, axis, after)
        return self._known[key]

    def kinds_between(self, options: Options) -> tuple[Ints, ...]:
        """Return per axis the kinds of its steps ``[*grid, new]``; -1 for no step.

        The grid is of all placements with these shardings.
        """
        if options not in self._grids:
            self._grids[options] = self._grid(options)
        return self._grids[options]

    def _grid(self, options: Options) -> tuple[Ints, ...]:
        shape = tuple(map(len, options))
        kinds = tuple(np.full((*shape, size), -1, dtype=np.int64) for size in shape)
        placements: dict[tuple[int, ...], Placement] = {}
        for at in product(*map(range, shape)):
            shardings = tuple([o[n] for o, n in zip(options, at, strict=True)])
            try:
                placements[at] = Placement(shardings)
            except BadPlacement:
                continue  # two axes would cut across each other's segments
        for at, before in placements.items():
            for axis, own in enumerate(options):
                for number, sharding in enumerate(own):
                    after = placements.get((*at[:axis], number, *at[axis + 1 :]))
                    if after is None or number == at[axis]:
                        continue
                    key = (before, axis, sharding)
                    if key not in self._known:
                        self._known[key] = self._find(before, axis, after)
                    move = self._known[key]
                    if move is not None:
                        kinds[axis][(*at, number)] = move.kind
        return kinds

    def _find(self, before: Placement, axis: int, after: Placement) -> Move | None:
        step = find_step(self.type.shape, before, after, axis, self.mesh)
        return None if step is None else Move(step, self._kind(step))

    def _kind(self, step: Step) -> int:
        # Along an axis all that counts of the others is what they leave to it.
        axis, before = step.axis, step.before.shardings
        others = (*before[:axis], None, *before[axis + 1 :])
        left: object = self._left_by(others)
        shardings = (*before, *step.after.shardings)
        segmented = any(isinstance(s, Split) and s.segments for s in shardings)
        if segmented or is_uneven_exchange(self.type.shape, step, self.mesh):
            left = others
        key = (step.kind, axis, before[axis], step.after.shardings[axis], left)
        if key not in self._numbers:
            self._numbers[key] = len(self.kinds)
            wire = step_wire_bytes(self.type, step, self.mesh)
            copies = local_copies(self.type, step, self.mesh)
            self.kinds.append(Kind(step, wire, copies))
        return self._numbers[key]

    def _left_by(self, others: tuple[Sharding | None, ...]) -> tuple[int, ...]:
        """Return the largest shard that all axes but one make."""
        if others not in self._left:
            together = Placement(tuple(s or Broadcast() for s in others))
            shape = largest_shard_shape(self.type.shape, together, self.mesh)
            self._left[others] = shape
        return self._left[others]
