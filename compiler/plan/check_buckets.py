"""Check that the buckets of a plan can be carried out."""

from __future__ import annotations

from partita.compiler.errors import BadPlan
from partita.compiler.plan.buckets import TOGETHER, way_of
from partita.compiler.plan.document import Boxing, Document
from partita.compiler.plan.emitted import emitted_units, key_of
from partita.compiler.plan.uses import completes


def check_bucket_keys(document: Document) -> None:
    """Check that each bucket has boxings of one stage, each in no other.

    Raises:
        BadPlan: naming the bucket, what was found and what is wanted.
    """
    boxings = {boxing.key: boxing for boxing in document.boxings}
    taken: dict[str, int] = {}
    for index, keys in enumerate(document.buckets):
        path = f"buckets[{index}]"
        if len(keys) < 2:
            raise BadPlan(f"{path}: found {len(keys)} boxings, wanted 2 at least")
        for key in keys:
            if key not in boxings:
                raise BadPlan(f"{path}: found {key!r}, wanted the key of a boxing")
            if key in taken:
                raise BadPlan(f"{path}: {key!r} is in buckets[{taken[key]}] already")
            taken[key] = index
        stages = {document.nodes[boxings[key].producer].stage for key in keys}
        if len(stages) > 1:
            found = ", ".join(map(str, sorted(stages)))
            raise BadPlan(f"{path}: found boxings of stages {found}, wanted one stage")


def check_buckets(document: Document) -> None:
    """Check that the boxings of each bucket of a stage can be carried out at once.

    Raises:
        BadPlan: naming the bucket, what was found and what is wanted.
    """
    boxings = {boxing.key: boxing for boxing in document.boxings}
    for index, keys in enumerate(document.buckets):
        first, *others = (boxings[key] for key in keys)
        way = way_of(document, first)
        if way is None:
            raise BadPlan(
                f"buckets[{index}]: {first.key!r} takes steps that cannot be shared; "
                f"of those that communicate want {', '.join(TOGETHER)} alone"
            )
        for other in others:
            if way_of(document, other) != way or _when(document, other) != _when(
                document, first
            ):
                raise BadPlan(
                    f"buckets[{index}]: {other.key!r} is not like {first.key!r}; want "
                    "the same collectives along the same axes, on one dtype, in one "
                    "part of the step"
                )
    if document.buckets:
        _check_order(document)


def _when(document: Document, boxing: Boxing) -> str:
    """Return in which part of the step a boxing is carried out."""
    if boxing.enters:
        return "before"
    return "after" if document.microbatches > 1 and completes(boxing) else "in"


def _check_order(document: Document) -> None:
    """Check that no bucket has to wait for itself."""
    emitted = {item for unit in emitted_units(document) for item in map(key_of, unit)}
    for index, keys in enumerate(document.buckets):
        first = next(b for b in document.boxings if b.key == keys[0])
        if _when(document, first) == "in" and not emitted.issuperset(keys):
            raise BadPlan(
                f"buckets[{index}]: one of its boxings needs what another has made"
            )
