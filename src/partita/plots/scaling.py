"""What a step would take with another batch, or with more ranks along an axis.

The decisions stay. Calls take what the formulas that ``explain`` prints give at other
sizes, boxings and the optimizer what the search would price them by. What neither
knows, such as an op without a row and what fusion saves, stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isclose
from typing import Protocol

from partita.compiler.cost.formulas import Formula
from partita.compiler.cost.op_formula import factor_name
from partita.compiler.errors import BadOptions
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.buckets import is_shared
from partita.compiler.plan.document import Boxing, Document
from partita.compiler.plan.explain_formula import call_formula
from partita.compiler.plan.uses import type_of
from partita.compiler.search.held import update_seconds
from partita.plots.batch_dims import find_batch
from partita.plots.resized import (
    boxing_step_s,
    bucket_step_s,
    grown,
    hidden_parts,
    pipeline_parts,
)

Symbols = Mapping[str, float]

BATCH = "batch"
"""The word for scaling along the batch, and not along an axis."""

_ROUNDING = 1e-9
"""Of a step, far below what any part of it takes."""

REST = "as it is"
"""The part of a step that stays as it is."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """What a step takes at several sizes of one thing.

    Attributes:
        along: ``batch``, or the axis whose ranks are counted.
        own: the size that the plan was made for.
        sizes: in rising order.
        parts: by part of the step, its seconds at each size.
    """

    along: str
    own: int
    sizes: tuple[int, ...]
    parts: Mapping[str, tuple[float, ...]]

    @property
    def seconds(self) -> tuple[float, ...]:
        """The whole step at each size."""
        return tuple(map(sum, zip(*self.parts.values(), strict=True)))


def scale(
    document: Document, along: str = BATCH, sizes: Sequence[int] | None = None
) -> Scaling:
    """Return what a plan's step takes along the batch or an axis.

    A pipeline is simulated at each size: its parts are those of its slowest rank.
    Unless given, ``sizes`` are powers of two times the plan's own, and those of an axis
    end where its ranks would be joined by other links.

    Raises:
        BadOptions: for something unknown to scale along, an axis of a pipeline, or
            sizes for which the formulas do not hold.
    """
    is_pipeline = len(document.stages) > 1
    if is_pipeline and along != BATCH:
        raise BadOptions(
            f"along {along}: the plan has {len(document.stages)} stages, each with a "
            f"mesh of its own; want {BATCH}"
        )
    way = _Batch(document) if along == BATCH else _Axis(document, along)
    chosen = way.usual() if sizes is None else tuple(sorted({*sizes}))
    if not chosen:
        raise BadOptions("sizes: there are none; want e.g. sizes=(8, 16, 32)")
    for size in chosen:
        why = way.against(size)
        if why:
            raise BadOptions(f"size {size} along {along}: {why}")
    every = (*chosen, way.own)
    if isinstance(way, _Batch) and is_pipeline:
        at = {n: pipeline_parts(document, way.found, n / way.own) for n in every}
    else:
        terms = list(_terms(document, way))
        at = {n: _parts(document, way, terms, n) for n in every}
        if isinstance(way, _Batch) and document.predicted.hidden_by_part:
            for n, parts in at.items():
                hidden = hidden_parts(document, way.found, n / way.own)
                for part, hidden_s in hidden.items():
                    parts[part] -= hidden_s
    step_s = document.predicted.seconds
    rest = step_s - sum(at[way.own].values())
    rest = rest if abs(rest) > _ROUNDING * step_s else 0.0
    parts = {part: tuple(at[n][part] for n in chosen) for part in at[way.own]}
    return Scaling(along, way.own, chosen, {**parts, REST: (rest,) * len(chosen)})


_Term = tuple[str, Callable[[int], float]]
"""The part of the step that something belongs to, and its seconds at a size."""


class _Way(Protocol):
    """What another size changes."""

    along: str
    own: int

    def usual(self) -> tuple[int, ...]:
        """Return sizes to look at."""
        ...

    def against(self, size: int) -> str:
        """Return why formulas do not hold for a size, "" where they do."""
        ...

    def mesh(self, size: int) -> Mesh:
        """Return the mesh of that size."""
        ...

    def of_call(self, key: str, size: int) -> Symbols:
        """Return the symbols in the formula of a call that have another value."""
        ...

    def of_boxing(self, boxing: Boxing, size: int) -> TensorType:
        """Return the type of what is boxed."""
        ...


class _Batch:
    """The batch has another size."""

    along = BATCH

    def __init__(self, document: Document) -> None:
        self.document = document
        self.found = find_batch(document)
        self.own = self.found.size * document.microbatches

    def usual(self) -> tuple[int, ...]:
        sizes = (self.own * factor // 4 for factor in (1, 2, 4, 8, 16))
        return tuple(sorted({size for size in sizes if not self.against(size)}))

    def against(self, size: int) -> str:
        count = self.document.microbatches
        if size < 1 or size % count:
            return f"want a positive multiple of {count} microbatches"
        return ""

    def mesh(self, size: int) -> Mesh:
        return self.document.mesh

    def of_call(self, key: str, size: int) -> Symbols:
        mesh = self.document.mesh
        sizes = self.found.factors.get(key, {})
        return {factor_name(f, mesh): n * size / self.own for f, n in sizes.items()}

    def of_boxing(self, boxing: Boxing, size: int) -> TensorType:
        type_ = type_of(self.document, boxing.ref)
        return grown(type_, boxing.ref, self.found, size / self.own)


class _Axis:
    """An axis has another number of ranks."""

    def __init__(self, document: Document, axis: str) -> None:
        self.document = document
        self.along = axis
        self.hardware = Hardware.from_dict(document.hardware)
        sizes = dict(document.mesh.axes)
        self.own = sizes.get(axis, 0)
        if self.own < 2:
            wide = [name for name, size in sizes.items() if size > 1]
            raise BadOptions(
                f"along {axis}: the mesh {document.mesh} has no ranks there to be "
                f"more or fewer; want one of {', '.join((BATCH, *wide))}"
            )

    def usual(self) -> tuple[int, ...]:
        sizes = (2**power for power in range(1, self.own.bit_length() + 3))
        return tuple(size for size in sizes if not self.against(size))

    def against(self, size: int) -> str:
        if size < 2:
            return "want two ranks or more"
        own, other = (self._levels(self.mesh(n)) for n in (self.own, size))
        if own != other:
            return "ranks would be joined by other links; the formulas hold for these"
        return ""

    def mesh(self, size: int) -> Mesh:
        return Mesh(**{**dict(self.document.mesh.axes), self.along: size})

    def of_call(self, key: str, size: int) -> Symbols:
        return {self.along: size}

    def of_boxing(self, boxing: Boxing, size: int) -> TensorType:
        return type_of(self.document, boxing.ref)

    def _levels(self, mesh: Mesh) -> list[object]:
        """Return what formulas take from the links, but for the size of the axis."""
        found: list[object] = []
        for number, name in enumerate(mesh.names):
            legs = self.hardware.legs(mesh, number)
            last = len(legs) - 1 if name == self.along else len(legs)
            found.append(
                [
                    (leg.link.name, leg.members, leg.size if at < last else 0)
                    for at, leg in enumerate(legs)
                ]
            )
        return found


def _terms(document: Document, way: _Way) -> Iterator[_Term]:
    """Yield what adds up to a step."""
    for key, node in document.nodes.items():
        formula = call_formula(document, key) if node.seconds else None
        if formula is not None:
            yield "compute", partial(_call_s, way, key, formula)
    together = {key for keys in document.buckets for key in keys}
    for boxing in document.boxings:
        for number, step in enumerate(boxing.lowering):
            if is_shared(step) and boxing.key in together:
                continue
            part = f"communication {step.axis}" if step.bytes else "local copies"
            seconds = partial(_step_s, document, way, boxing, number)
            if isclose(seconds(way.own), step.seconds, rel_tol=_ROUNDING):
                yield part, seconds
    known = {boxing.key: boxing for boxing in document.boxings}
    for keys in document.buckets:
        rows = [_sent_steps(known[key]) for key in keys]
        for parts in zip(*rows, strict=True):
            boxing, number = parts[0]
            axis = boxing.lowering[number].axis
            yield f"communication {axis}", partial(_bucket_s, document, way, parts)


def _sent_steps(boxing: Boxing) -> list[tuple[Boxing, int]]:
    """Return the steps of a boxing that communicate, by number."""
    return [(boxing, n) for n, step in enumerate(boxing.lowering) if is_shared(step)]


def _call_s(way: _Way, key: str, formula: Formula, size: int) -> float:
    return formula.evaluate_at(way.of_call(key, size))


def _step_s(
    document: Document, way: _Way, boxing: Boxing, number: int, size: int
) -> float:
    type_, mesh = way.of_boxing(boxing, size), way.mesh(size)
    return boxing_step_s(document, boxing, number, type_, mesh)


def _bucket_s(
    document: Document, way: _Way, parts: Sequence[tuple[Boxing, int]], size: int
) -> float:
    types = [way.of_boxing(boxing, size) for boxing, _ in parts]
    return bucket_step_s(document, parts, types, way.mesh(size))


def _parts(
    document: Document,
    way: _Way,
    terms: Iterable[_Term],
    size: int,
) -> dict[str, float]:
    """Return the parts of the step that are priced, at a size."""
    found = {"compute": 0.0, "update": _update_s(document, way.mesh(size))}
    for part, seconds in terms:
        found[part] = found.get(part, 0.0) + seconds(size)
    return found


def _update_s(document: Document, mesh: Mesh) -> float:
    """Return what the optimizer takes."""
    hardware = Hardware.from_dict(document.hardware)
    return sum(
        update_seconds(
            p.type, p.placements.optimizer, mesh, hardware, document.options.optimizer
        )
        for p in document.parameters.values()
        if p.placements.optimizer is not None
    )
