"""What the buckets of a plan send: the collectives of several boxings as one.

The boxings of a bucket are carried out at once, step by step. What they would put into
a collective each lies side by side in one buffer, and one collective takes that: fewer
messages, and larger ones. They call the same collectives along the same axes, in one
order, on elements of one dtype.

Laying an all-reduce's parts side by side takes the place of the copy that a functional
all-reduce makes of its input, or of those that an exchange makes for each rank, and its
results are views: it costs nothing more. What a gather brings has to be parted again,
what is scattered put together first: those copies are counted. How a message is carried
out is decided by what all parts have together.

Source: S. Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel
Training", VLDB 2020, section 3.2.2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from partita.compiler.cost.boxing import copies_seconds
from partita.compiler.cost.collectives import (
    CollectiveKind,
    axis_seconds,
    carried_out,
    sent_bytes,
    wire_bytes,
)
from partita.compiler.cost.compute import memory_s
from partita.compiler.cost.step import (
    Step,
    StepKind,
    buffer_copied,
    payload_bytes_at,
    widest_coordinates,
)
from partita.compiler.cost.unlike_ranks import steps_of
from partita.compiler.hardware.profile import Hardware, load_hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Partial
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.document import (
    Boxing,
    CollectiveTotal,
    Document,
    LoweringStep,
)
from partita.compiler.plan.stages import stage_documents
from partita.compiler.plan.uses import times_in_step, type_of

TOGETHER = (StepKind.ALL_REDUCE, StepKind.ALL_GATHER, StepKind.REDUCE_SCATTER)
"""Steps whose collectives can be one for several tensors."""

Part = tuple[TensorType, Step]
"""A step of one of the boxings, and the logical type of what it is on."""


@dataclass(frozen=True)
class Sent:
    """One collective of a bucket: of ``parts``, ``times`` times in a step of the plan.

    The parts are steps of one kind along one axis.
    """

    parts: tuple[Part, ...]
    mesh: Mesh
    times: int

    @property
    def kind(self) -> str:
        """What it does, as lowerings say it."""
        return str(self.parts[0][1].kind)

    @property
    def axis(self) -> str:
        """The mesh axis that it runs along."""
        return self.mesh.names[self.parts[0][1].axis]

    @cached_property
    def payload(self) -> int:
        """The bytes that a rank puts into it each time, the rank that puts most."""
        ranks = {
            coordinates
            for _, step in self.parts
            for coordinates in widest_coordinates(step.before, step.after, self.mesh)
        }
        return max(
            sum(payload_bytes_at(*part, self.mesh, at) for part in self.parts)
            for at in ranks
        )

    def bytes(self, hardware: Hardware) -> int:
        """Return what a rank puts on the wire in a step of the plan."""
        step, wire = self.parts[0][1], self._wire_bytes
        assert step.collective is not None
        once = sent_bytes(step.collective, wire, self.mesh, step.axis, hardware)
        return self.times * once

    @property
    def buffer_bytes(self) -> int:
        """What a rank holds of it at most: what it puts in, or what it gets."""
        is_gather = self.parts[0][1].kind is StepKind.ALL_GATHER
        return self.payload * (self._size if is_gather else 1)

    def seconds(self, hardware: Hardware) -> float:
        """Return how long it takes in a step, with the copies around it."""
        step = self.parts[0][1]
        copies_s = sum(copies_seconds(*p, self.mesh, hardware) for p in self.parts)
        device, num = hardware.device, 0
        if step.kind is StepKind.REDUCE_SCATTER:
            num = 1
        elif step.kind is StepKind.ALL_GATHER:
            num = 1 + len(self.parts)
        moved = buffer_copied(step.kind, self.payload, self._size)
        own_s = num * device.launch_s + memory_s(2 * moved, device)
        return self.message_s(hardware) + self.times * (copies_s + own_s)

    def carried_out(self, hardware: Hardware) -> CollectiveKind:
        """Return as what it is carried out."""
        step = self.parts[0][1]
        assert step.collective is not None
        stated = step.collective, self.payload, self.mesh, step.axis
        return carried_out(*stated, hardware)[0]

    def message_s(self, hardware: Hardware) -> float:
        """Return how long its message passes in a step."""
        step, wire = self.parts[0][1], self._wire_bytes
        assert step.collective is not None
        once_s = axis_seconds(step.collective, wire, self.mesh, step.axis, hardware)
        return self.times * once_s

    @property
    def _size(self) -> int:
        return self.mesh.sizes[self.parts[0][1].axis]

    @property
    def _wire_bytes(self) -> int:
        collective = self.parts[0][1].collective
        assert collective is not None
        return wire_bytes(collective, self.payload, self._size)


def bucket_sent(document: Document, boxings: Sequence[Boxing]) -> tuple[Sent, ...]:
    """Return the collectives of a bucket, in order.

    Args:
        document: a plan of one stage.
        boxings: those of the bucket, which are alike as ``way_of`` tells.
    """
    times = times_in_step(boxings[0], document.microbatches)
    rows = [_parts(document, boxing) for boxing in boxings]
    calls = zip(*rows, strict=True)
    return tuple(Sent(parts, document.mesh, times) for parts in calls)


def way_of(document: Document, boxing: Boxing) -> object:
    """Return what boxings of one bucket have equal; ``None`` if it can be in none."""
    parts = _parts(document, boxing)
    if not parts or any(step.kind not in TOGETHER for _, step in parts):
        return None
    times = times_in_step(boxing, document.microbatches)
    dtype = parts[0][0].dtype
    return dtype, times, tuple((step.kind, step.axis, _sums(step)) for _, step in parts)


def is_shared(step: LoweringStep) -> bool:
    """Whether a step of a boxing in a bucket is one with those of the others."""
    return step.kind in TOGETHER


def steps_alone(document: Document) -> Iterator[tuple[Boxing, LoweringStep]]:
    """Yield the steps of all boxings, but for the collectives of buckets."""
    bucketed = {key for keys in document.buckets for key in keys}
    for boxing in document.boxings:
        for step in boxing.lowering:
            if not (is_shared(step) and boxing.key in bucketed):
                yield boxing, step


def sending(document: Document) -> Iterator[Sent]:
    """Yield the collectives of all buckets of a plan of one stage."""
    known = {boxing.key: boxing for boxing in document.boxings}
    for keys in document.buckets:
        yield from bucket_sent(document, [known[key] for key in keys])


def bucket_seconds(document: Document) -> dict[tuple[str, ...], tuple[float, float]]:
    """Return by bucket the seconds of its collectives, and of its boxings' apart."""
    hardware = load_hardware(document.hardware)
    found: dict[tuple[str, ...], tuple[float, float]] = {}
    for part in stage_documents(document):
        known = {boxing.key: boxing for boxing in part.boxings}
        for keys in part.buckets:
            boxings = [known[key] for key in keys]
            sent_s = sum(sent.seconds(hardware) for sent in bucket_sent(part, boxings))
            alone = (s.seconds for b in boxings for s in b.lowering if is_shared(s))
            found[keys] = sent_s, sum(alone)
    return found


def collective_totals(document: Document) -> tuple[CollectiveTotal, ...]:
    """Return how often each collective runs along each axis, and on how much."""
    times_of: Counter[tuple[str, int, Mesh, str]] = Counter()
    for part in stage_documents(document):
        mesh = part.mesh
        is_alone = {
            name: size == 1 for name, size in zip(mesh.names, mesh.sizes, strict=True)
        }
        for boxing, step in steps_alone(part):
            if step.payload and not is_alone[step.axis]:
                times = times_in_step(boxing, part.microbatches)
                times_of[step.kind, step.payload, mesh, step.axis] += times
        for sent in sending(part):
            times_of[sent.kind, sent.payload, mesh, sent.axis] += sent.times
    counts: Counter[tuple[str, str]] = Counter()
    payloads: Counter[tuple[str, str]] = Counter()
    hardware = load_hardware(document.hardware)
    for (kind, payload, mesh, axis), times in times_of.items():
        stated = CollectiveKind(kind), payload, mesh, mesh.axis(axis)
        carried, put_in = carried_out(*stated, hardware)
        counts[str(carried), axis] += times
        payloads[str(carried), axis] += times * put_in
    return tuple(
        CollectiveTotal(kind, axis, counts[kind, axis], payloads[kind, axis])
        for kind, axis in sorted(counts)
    )


def _parts(document: Document, boxing: Boxing) -> list[Part]:
    type_ = type_of(document, boxing.ref)
    steps = steps_of(document, boxing)
    return [(type_, step) for step in steps if step.collective is not None]


def _sums(step: Step) -> str:
    before = step.before.shardings[step.axis]
    return str(before.reduction) if isinstance(before, Partial) else ""
