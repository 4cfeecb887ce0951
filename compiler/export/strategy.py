"""A plan in the words of training frameworks: what each axis of the mesh is for.

What an axis is for follows from placements alone. On a ``data`` axis inputs are split
along the batch (dim 0) and parameters are used whole, on ``context`` along the sequence
(dim 1); on ``expert`` parameters of three dims or more are split along the first and
tokens go by all-to-all, on ``tensor`` other parameters are used in parts. What the
words do not say stands among the notes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from math import prod

from partita.compiler.errors import BadOptions
from partita.compiler.ir.program import InputKind
from partita.compiler.ir.sbp import Partial, Placement, Reduction, Split
from partita.compiler.plan.document import Document
from partita.compiler.plan.units import pattern, printable

_MOST_NAMED = 20


class Use(StrEnum):
    """What an axis is for."""

    DATA = "data"
    CONTEXT = "context"
    TENSOR = "tensor"
    EXPERT = "expert"
    NOTHING = "nothing"


@dataclass(frozen=True)
class Strategy:
    """How a plan uses its ranks, in the words of training frameworks."""

    document: Document

    def __post_init__(self) -> None:
        if len({stage.mesh for stage in self.document.stages}) > 1:
            raise BadOptions(
                "the plan's stages have meshes of several shapes, which no framework's "
                "configuration has; want stages on equal meshes"
            )

    @cached_property
    def uses(self) -> dict[str, Use]:
        """What each axis of several ranks is for, by name."""
        mesh = self.document.stages[0].mesh
        return {
            name: self._use(axis)
            for axis, (name, size) in enumerate(mesh.axes)
            if size > 1
        }

    def degree(self, use: Use) -> int:
        """Return how many ranks share work so."""
        sizes = dict(self.document.stages[0].mesh.axes)
        return prod(sizes[name] for name, own in self.uses.items() if own is use)

    @property
    def data_parallel(self) -> int:
        """The ranks that the batch is cut over, those that share experts among them."""
        mesh = self.document.stages[0].mesh
        return prod(
            mesh.sizes[self._axis(name)]
            for name, use in self.uses.items()
            if use is Use.DATA
            or (use is Use.EXPERT and 0 in self._input_dims(self._axis(name)))
        )

    @property
    def pipeline(self) -> int:
        """The number of places in the pipeline."""
        return max(self.document.schedule.rank_of) + 1

    @property
    def stages_per_rank(self) -> int:
        """How many stages each place has."""
        return len(self.document.stages) // self.pipeline

    @cached_property
    def zero(self) -> int:
        """The stage of ZeRO on the data axes that most bytes are held at."""
        weights = [0, 0, 0, 0]
        for parameter in self.document.parameters.values():
            placements = parameter.placements
            held = (placements.optimizer, placements.gradient, placements.storage)
            level = 0
            for placement in held:
                if placement is None or not self._splits(placement, placements.use):
                    break
                level += 1
            weights[level] += parameter.type.num_bytes
        return weights.index(max(weights))

    @property
    def shards_data(self) -> bool:
        """Whether parameters are held in pieces over the data axes."""
        return self.zero > 0

    @cached_property
    def sequence_parallel(self) -> bool:
        """Whether activations between calls are split along dim 1 on a tensor axis."""
        axes = [self._axis(n) for n, use in self.uses.items() if use is Use.TENSOR]
        return any(
            isinstance(s := placement.shardings[axis], Split) and s.dim == 1
            for node in self.document.nodes.values()
            if node.role is None
            for type_, placement in zip(node.types, node.signature.results, strict=True)
            if type_ is not None and placement is not None and type_.ndim >= 3
            for axis in axes
        )

    @property
    def global_batch(self) -> int:
        """The samples of a step."""
        shapes = [type_.shape for type_ in self.document.inputs.tensors.values()]
        return max((shape[0] for shape in shapes if shape), default=1)

    @property
    def sequence(self) -> int | None:
        """The second size of the inputs, where all that have one agree."""
        shapes = [type_.shape for type_ in self.document.inputs.tensors.values()]
        sizes = {shape[1] for shape in shapes if len(shape) > 1}
        return sizes.pop() if len(sizes) == 1 else None

    @property
    def micro_batch(self) -> int:
        """The samples of a microbatch on one rank."""
        parts = self.data_parallel * self.document.microbatches
        return max(self.global_batch // parts, 1)

    def notes(self) -> tuple[str, ...]:
        """Return what no configuration says, a line each."""
        return tuple(printable(note) for note in self._notes())

    def _notes(self) -> Iterator[str]:
        document = self.document
        for name, use in self.uses.items():
            if use is Use.NOTHING:
                yield f"axis {name}: every rank of it does all of the work"
        yield from self._splits_of_parameters()
        segmented, maxima = 0, 0
        for node in document.nodes.values():
            shardings = [s for p in node.signature.results if p for s in p.shardings]
            segmented += any(isinstance(s, Split) and s.segments for s in shardings)
            maxima += any(
                isinstance(s, Partial) and s.reduction is not Reduction.SUM
                for s in shardings
            )
        if segmented:
            yield f"{segmented} tensors are split in segments, S(dim; a|b)"
        if maxima:
            yield f"{maxima} tensors are partial maxima or minima"
        if document.recompute:
            yield f"{len(document.recompute)} calls and boxings are made again, by name"
        if document.fusion:
            yield f"{len(document.fusion)} groups of calls are one kernel each"
        if document.joined:
            yield f"{len(document.joined)} groups of products are one product each"
        if len(document.stages) > 1:
            for number, stage in enumerate(document.stages):
                yield f"stage {number} has {len(stage.nodes)} nodes, cut by their keys"

    def _splits_of_parameters(self) -> Iterator[str]:
        """Yield how parameters are used and held that are not whole, block by block."""
        found: dict[tuple[str, str, str], int] = {}
        for name, parameter in self.document.parameters.items():
            own = parameter.placements
            held = own.optimizer or own.storage
            if not (own.use.is_broadcast and held.is_broadcast):
                key = pattern(name), str(own.use), str(held)
                found[key] = found.get(key, 0) + 1
        for (name, use, held), count in list(found.items())[:_MOST_NAMED]:
            yield f"{name} x{count}: used as {use}, held as {held}"
        if len(found) > _MOST_NAMED:
            yield f"and {len(found) - _MOST_NAMED} more kinds of parameters so"

    def _axis(self, name: str) -> int:
        return self.document.stages[0].mesh.axis(name)

    def _splits(self, placement: Placement, use: Placement) -> bool:
        """Whether a data axis cuts what is used whole there."""
        axes = [self._axis(n) for n, own in self.uses.items() if own is Use.DATA]
        return any(
            isinstance(placement.shardings[axis], Split)
            and not isinstance(use.shardings[axis], Split)
            for axis in axes
        )

    def _input_dims(self, axis: int) -> set[int]:
        """Return the dims of inputs that an axis splits."""
        return {
            sharding.dim
            for node in self.document.nodes.values()
            if node.role is not None and node.role.kind is InputKind.INPUT
            for placement in node.signature.results[:1]
            if placement and isinstance(sharding := placement.shardings[axis], Split)
        }

    def _use(self, axis: int) -> Use:
        document = self.document
        used = {
            name: sharding
            for name, parameter in document.parameters.items()
            if isinstance(sharding := parameter.placements.use.shardings[axis], Split)
        }
        name = document.stages[0].mesh.names[axis]
        exchanges = any(
            step.kind == "all_to_all" and step.axis == name
            for boxing in document.boxings
            for step in boxing.lowering
        )
        many = [n for n in used if len(document.parameters[n].shape) >= 3]
        if exchanges and any(used[n].dim == 0 for n in many):
            return Use.EXPERT
        dims = self._input_dims(axis)
        size = sum(document.parameters[n].type.num_bytes for n in used)
        total = sum(p.type.num_bytes for p in document.parameters.values())
        if 0 in dims and 2 * size <= total:
            return Use.DATA
        if used:
            return Use.TENSOR
        return Use.CONTEXT if 1 in dims else Use.NOTHING
