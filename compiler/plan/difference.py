"""What differs between two plans: what moved, and the price of it.

Things are the same that have one name or one stable key; in plans of a model and of the
same model edited, those that are in one place (counterparts.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from typing import Any

from partita.compiler.plan.counterparts import called_as_in
from partita.compiler.plan.difference_table import print_difference
from partita.compiler.plan.document import Document, Parameter
from partita.compiler.plan.notebook import difference_html
from partita.compiler.plan.sent import sent_bytes
from partita.compiler.plan.stages import mesh_text

_PLACEMENTS = ("storage", "use", "gradient", "optimizer")
_SHOWN = 4
"""Of two rows, so many actions from where they part."""


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that differs; ``None`` where a plan has no such thing.

    ``what`` is a placement of a parameter, ``signature`` of a node, or empty.

    >>> str(Change("up.weight", "use", "(B,)", "(S(0),)"))
    'up.weight use: (B,) -> (S(0),)'
    """

    name: str
    what: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        what = f" {self.what}" if self.what else ""
        return f"{self.name}{what}: {self.before or '-'} -> {self.after or '-'}"


@dataclass(frozen=True, slots=True)
class Price:
    """A figure that both plans predict, in seconds or bytes."""

    name: str
    before: float
    after: float

    @property
    def change(self) -> float:
        """How much more the second plan takes."""
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs between two plans, from the first to the second.

    Attributes:
        plan: model, mesh, hardware, precision, optimizer, microbatches, schedule.
        parameters: placements of parameters and buffers, and those of one plan alone.
        nodes: signatures of calls, and calls of one plan alone.
        groups: what is fused, joined, sent together, begun ahead, waited for late or
            made again, by the first of a group.
        collectives: how many of a kind run along an axis, and their payloads.
        seconds: of a step, and by part.
        bytes: that a rank holds at the peak, by part, and puts on the wire.
        renamed: keys of what only has another name, and those it had.
    """

    plan: tuple[Change, ...]
    parameters: tuple[Change, ...]
    nodes: tuple[Change, ...]
    groups: tuple[Change, ...]
    collectives: tuple[Change, ...]
    seconds: tuple[Price, ...]
    bytes: tuple[Price, ...]
    renamed: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def is_empty(self) -> bool:
        """Whether the plans decide alike; what they predict may differ."""
        of_calls = self.nodes or self.groups or self.collectives
        return not (self.plan or self.parameters or of_calls)

    def to_dict(self) -> dict[str, Any]:
        """Return the difference as plain JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        return print_difference(self)

    def _repr_html_(self) -> str:
        """Return what notebooks show."""
        return difference_html(self)


def find_difference(before: Document, after: Document) -> Difference:
    """Return what differs from ``before`` to ``after``, by the names of ``after``."""
    of_plans = *_changes("", _of_plan(before), _of_plan(after)), *_rows(before, after)
    names: dict[str, str] = {}
    if before.model.fingerprint != after.model.fingerprint:
        before, names = called_as_in(before, after)
    return Difference(
        of_plans,
        tuple(_of_parameters(before, after)),
        tuple(_changes("signature", _signatures(before), _signatures(after))),
        tuple(_of_groups(before, after)),
        tuple(_changes("", _collectives(before), _collectives(after))),
        tuple(_prices(_seconds(before), _seconds(after))),
        tuple(_prices(_bytes(before), _bytes(after))),
        {new: old for old, new in names.items()},
    )


def _changes(
    what: str, before: Mapping[str, str], after: Mapping[str, str]
) -> Iterator[Change]:
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name), after.get(name)
        if old != new:
            yield Change(name, what, old, new)


def _of_plan(document: Document) -> dict[str, str]:
    fingerprint = document.model.fingerprint[:12]
    return {
        "model": f"{document.model.class_name} {fingerprint}",
        "mesh": mesh_text(document),
        "hardware": str(document.hardware.get("name", "unnamed")),
        "precision": document.options.precision or "the model's own",
        "optimizer": document.options.optimizer,
        "microbatches": str(document.microbatches),
        "schedule": document.schedule.name,
        "stages": str(len(document.stages)),
        "rows of stages": ", ".join(map(str, document.schedule.rank_of)),
    }


def _rows(before: Document, after: Document) -> Iterator[Change]:
    """Yield where rows of schedules that have one name part, with what comes there."""
    if before.schedule.name != after.schedule.name:
        return
    pairs = zip(before.schedule.rows, after.schedule.rows, strict=False)
    for row, texts in enumerate(pairs):
        old, new = (text.split() for text in texts)
        if old != new:
            same = takewhile(
                lambda pair: pair[0] == pair[1], zip(old, new, strict=False)
            )
            at = sum(1 for _ in same)
            parts = (" ".join(own[at : at + _SHOWN]) or None for own in (old, new))
            yield Change(f"row {row}", f"from action {at}", *parts)


def _of_parameters(before: Document, after: Document) -> Iterator[Change]:
    old, new = before.parameters, after.parameters
    for name in dict.fromkeys((*old, *new)):
        if name not in old or name not in new:
            found = [str(p[name].type) if name in p else None for p in (old, new)]
            yield Change(name, "", *found)
            continue
        if old[name].type != new[name].type:
            yield Change(name, "", str(old[name].type), str(new[name].type))
        for what in _PLACEMENTS:
            one, other = _placement(old[name], what), _placement(new[name], what)
            if one != other:
                yield Change(name, what, one, other)
        homes = [",".join(map(str, p[name].homes)) for p in (old, new)]
        if homes[0] != homes[1]:
            yield Change(name, "stages", *homes)
    buffers = [
        {n: str(b.placement) for n, b in d.buffers.items()} for d in (before, after)
    ]
    yield from _changes("buffer", *buffers)


def _placement(parameter: Parameter, what: str) -> str | None:
    placement = getattr(parameter.placements, what)
    return None if placement is None else str(placement)


def _signatures(document: Document) -> dict[str, str]:
    several = len(document.stages) > 1
    return {
        key: f"{node.signature} in stage {node.stage}"
        if several
        else str(node.signature)
        for key, node in document.nodes.items()
        if node.role is None
    }


def _of_groups(before: Document, after: Document) -> Iterator[Change]:
    old, new = _groups(before), _groups(after)
    for what in old:
        yield from _changes(what, old[what], new[what])


def _groups(document: Document) -> dict[str, Mapping[str, str]]:
    """Return what is done with calls and boxings together, or at other times."""

    def named(groups: Iterable[tuple[str, ...]]) -> dict[str, str]:
        return {keys[0]: ", ".join(keys) for keys in groups}

    again = [key for key in document.recompute if key not in document.nodes]
    return {
        "fused": named(document.fusion),
        "joined": named(document.joined),
        "sent together": named(document.buckets),
        "begun before": document.ahead,
        "waited for before": document.late,
        "made again": {key: "for the backward" for key in again},
    }


def _collectives(document: Document) -> dict[str, str]:
    return {
        f"{total.kind} {total.axis}": f"x{total.count}, {total.bytes} bytes"
        for total in document.collectives
    }


def _prices(before: Mapping[str, float], after: Mapping[str, float]) -> Iterator[Price]:
    for name in dict.fromkeys((*before, *after)):
        yield Price(name, before.get(name, 0), after.get(name, 0))


def _seconds(document: Document) -> dict[str, float]:
    predicted = document.predicted
    return {"step": predicted.seconds, **predicted.seconds_by_part}


def _bytes(document: Document) -> dict[str, float]:
    predicted = document.predicted
    return {
        "memory": predicted.bytes,
        "on the wire": sent_bytes(document),
        **predicted.bytes_by_part,
    }
