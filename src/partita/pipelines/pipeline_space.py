"""What a pipeline may be: how many stages of which ranks, schedules, microbatches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from partita.compiler.errors import BadOptions
from partita.compiler.ir.mesh import Mesh
from partita.compiler.schedules.make import SCHEDULES, check_figures, make_schedule
from partita.compiler.schedules.schedule import Action, Schedule
from partita.compiler.search.arrangement import Form
from partita.compiler.search.pins import parse_pin
from partita.options import Options

_BUSY = 4
"""More microbatches than so many times the rows are not tried unless asked for."""

_ANY_SIZES = 4
"""Up to so many ranks, rows of any sizes are tried; of more, those that divide them."""

_MIXED = 8
"""Of more ranks than that, the rows that are tried have one size."""

_MOST_TURNS = 4
"""Into so many stages at most the part of a row is cut, unless told."""


@dataclass(frozen=True)
class PipelineSpace:
    """The pipelines that are looked at.

    Attributes:
        sizes: how many ranks each row has.
        meshes: that so many ranks can form.
        options: what is asked of schedules.
    """

    sizes: tuple[tuple[int, ...], ...]
    meshes: Mapping[int, tuple[Mesh, ...]]
    options: Options

    @classmethod
    def of_stages(cls, num_rows: int, mesh: Mesh, options: Options) -> PipelineSpace:
        """Return the pipelines of so many rows of one mesh."""
        return cls(((mesh.size,) * num_rows,), {mesh.size: (mesh,)}, options)

    @classmethod
    def of_devices(cls, devices: int, options: Options) -> PipelineSpace:
        """Return the pipelines of so many ranks, two rows and more, that pins fit."""
        if devices > _MIXED:
            rows = (n for n in range(2, devices + 1) if devices % n == 0)
            sizes = tuple((devices // n,) * n for n in rows)
        else:
            any_size = range(1, devices)
            parts = [n for n in any_size if devices <= _ANY_SIZES or devices % n == 0]
            sizes = tuple(_sums(devices, parts))
        known = {size for row in sizes for size in row}
        meshes = {size: meshes_for(size, options) for size in known}
        sizes = tuple(row for row in sizes if all(meshes[size] for size in row))
        return cls(sizes, meshes, options)

    @property
    def most_microbatches(self) -> int:
        """More are not tried unless asked for."""
        return _BUSY * max(map(len, self.sizes))

    def is_tried(self, num_rows: int, count: int) -> bool:
        """Whether so many rows are given so many microbatches."""
        return self.options.microbatches != "auto" or count <= _BUSY * num_rows

    def check_count(self, count: int) -> None:
        """Check that the schedule asked for cuts a batch into so many on some rows.

        Raises:
            BadOptions: when it does on none.
        """
        name = self.options.schedule
        if name == "auto":
            return
        refusal: BadOptions | None = None
        for num_rows in sorted({len(sizes) for sizes in self.sizes}):
            try:
                check_figures(name, num_rows, count, self._turns(name)[0])
            except BadOptions as found:
                refusal = found
            else:
                return
        if refusal is not None:
            raise refusal

    def forms(self, count: int, most_rows: int | None = None) -> list[Form]:
        """Return the forms of so many microbatches, on at most so many rows, or any."""
        return [
            form
            for sizes in self.sizes
            if most_rows is None or len(sizes) <= most_rows
            for form in self.forms_of(sizes, count)
        ]

    def forms_of(self, sizes: tuple[int, ...], count: int) -> list[Form]:
        """Return those of them that have rows of these sizes."""
        return [
            Form(schedule, sizes, tuple(self._shapes(sizes, schedule)))
            for schedule in self._schedules(len(sizes), count)
        ]

    def _shapes(
        self, sizes: tuple[int, ...], schedule: Schedule
    ) -> Iterator[tuple[Mesh, ...]]:
        for row in schedule.rank_of:
            yield self.meshes[sizes[row]]

    def _schedules(self, num_rows: int, count: int) -> Iterator[Schedule]:
        """Yield the schedules of so many rows, none that does what another one does."""
        options = self.options
        if not self.is_tried(num_rows, count):
            return
        asked = options.schedule
        names = sorted(SCHEDULES) if asked == "auto" else [asked]
        seen: set[tuple[tuple[Action, ...], ...]] = set()
        for name in names:
            for turns in self._turns(name):
                try:
                    made = make_schedule(name, num_rows, count, turns)
                except BadOptions:
                    continue
                if made.rows not in seen:
                    seen.add(made.rows)
                    yield made

    def _turns(self, name: str) -> range:
        """Return how many stages a row may have."""
        asked = self.options.stages_per_rank
        if isinstance(asked, int):
            return range(asked, asked + 1)
        is_several = name == "interleaved"
        return range(2, _MOST_TURNS + 1) if is_several else range(1, 2)


def meshes_of(size: int) -> tuple[Mesh, ...]:
    """Return the meshes of one and two axes that so many ranks can form.

    >>> [str(mesh) for mesh in meshes_of(4)]
    ['dp=4', 'dp=2,tp=2']
    """
    pairs = [(n, size // n) for n in range(2, size) if size % n == 0]
    return Mesh(dp=size), *(Mesh(dp=dp, tp=tp) for dp, tp in pairs)


def meshes_for(size: int, options: Options) -> tuple[Mesh, ...]:
    """Return those of them that all pins fit.

    >>> [str(mesh) for mesh in meshes_for(4, Options(pins={"up": "on tp"}))]
    ['dp=2,tp=2']
    """
    pins = [parse_pin(name, text) for name, text in options.pins.items()]
    meshes = meshes_of(size)
    return tuple(mesh for mesh in meshes if all(pin.fits(mesh) for pin in pins))


def _sums(total: int, parts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield every row of parts that adds up to a total."""
    if total == 0:
        yield ()
    for part in parts:
        if part <= total:
            for rest in _sums(total - part, parts):
                yield part, *rest
