"""How a pipeline is laid out: where it is cut, on which ranks, in which order it works.

A row is the ranks that a schedule knows as one; the stages of a row lie on the same
ranks, each on a mesh of its own shape. Rows follow each other in the order of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from partita.compiler.ir.mesh import Mesh
from partita.compiler.schedules.schedule import Schedule

PIPELINE = "pp"
"""The mesh axis that carries stages."""

SINGLE = Mesh(dp=1)
"""The mesh of a stage on one rank, where no other is asked for."""


@dataclass(frozen=True)
class Form:
    """What is decided before the cut.

    Attributes:
        schedule: of compute alone.
        sizes: by row, its number of ranks.
        meshes: by stage, those that its row can form.
    """

    schedule: Schedule
    sizes: tuple[int, ...]
    meshes: tuple[tuple[Mesh, ...], ...]

    @property
    def ranks(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of every stage."""
        ends = accumulate(self.sizes)
        rows = [
            tuple(range(end - size, end))
            for end, size in zip(ends, self.sizes, strict=True)
        ]
        return tuple(rows[row] for row in self.schedule.rank_of)

    def __str__(self) -> str:
        schedule = self.schedule
        per_rank = schedule.num_stages // len(self.sizes)
        rows = "+".join(map(str, self.sizes))
        return (
            f"{len(self.sizes)} x {per_rank} stages on {rows} ranks, {schedule.name}, "
            f"{schedule.num_microbatches} microbatches"
        )


@dataclass(frozen=True)
class Arrangement:
    """A form, and where it is cut.

    Attributes:
        form: what was decided before.
        ends: by stage, the boundary of the line where it ends.
        meshes: by stage, its mesh.
        allowed: by stage, the bytes that it may hold on a rank; ``None`` is any.
    """

    form: Form
    ends: tuple[int, ...]
    meshes: tuple[Mesh, ...]
    allowed: tuple[int | None, ...]


def whole_mesh(meshes: Sequence[Mesh], schedule: Schedule) -> Mesh:
    """Return the mesh of all ranks, given those of the stages.

    Its first axis carries the stages where all have one mesh; else there is no grid.

    >>> from partita.compiler.schedules.make import make_schedule
    >>> pair = make_schedule("1f1b", 2, 2)
    >>> str(whole_mesh((Mesh(dp=2), Mesh(dp=2)), pair))
    'pp=2,dp=2'
    >>> str(whole_mesh((Mesh(dp=1), Mesh(dp=3)), pair))
    'rank=4'
    """
    if len(set(meshes)) == 1:
        axes = {} if meshes[0] == SINGLE else dict(meshes[0].axes)
        return Mesh(**{PIPELINE: len(schedule.rows)}, **axes)
    sizes = dict(zip(schedule.rank_of, (mesh.size for mesh in meshes), strict=True))
    return Mesh(rank=sum(sizes.values()))
