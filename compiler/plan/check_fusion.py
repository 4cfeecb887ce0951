"""Check that the groups of calls that a plan fuses can be kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from partita.compiler.errors import BadPlan
from partita.compiler.plan.document import Document
from partita.compiler.plan.emitted import key_of, units_alone


def check_fusion_keys(document: Document) -> None:
    """Check that each group has calls of one stage, each in no other.

    Raises:
        BadPlan: naming the group, what was found and what is wanted.
    """
    taken: dict[str, int] = {}
    for index, keys in enumerate(document.fusion):
        path = f"fusion[{index}]"
        for key in keys:
            if document.nodes[key].role is not None:
                raise BadPlan(f"{path}: found {key!r}, which enters; want calls")
            if key in taken:
                raise BadPlan(f"{path}: {key!r} is in fusion[{taken[key]}] already")
            taken[key] = index
        stages = {document.nodes[key].stage for key in keys}
        if len(stages) > 1:
            found = ", ".join(map(str, sorted(stages)))
            raise BadPlan(f"{path}: found calls of stages {found}, wanted one stage")


def check_fusion(document: Document) -> None:
    """Check that no group of a plan of one stage has to wait for itself.

    Raises:
        BadPlan: naming the group.
    """
    if not document.fusion or not _is_stuck(document, document.fusion):
        return
    for index, keys in enumerate(document.fusion):
        if _is_stuck(document, (keys,)):
            raise BadPlan(
                f"fusion[{index}]: one of its calls needs, by way of what is not in "
                "the group, what another has made"
            )
    raise BadPlan("fusion: found groups that wait for each other; want one order")


def _is_stuck(document: Document, groups: Sequence[tuple[str, ...]]) -> bool:
    """Whether calls never come to run where these groups are kernels."""
    units = units_alone(replace(document, fusion=tuple(groups), joined=()))
    emitted = {key_of(item) for unit in units for item in unit}
    return any(not emitted.issuperset(keys) for keys in groups)
