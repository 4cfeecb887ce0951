"""Check what a plan makes again for the backward: both of each, and who uses which."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import cast

from partita.compiler.errors import BadPlan
from partita.compiler.ir.again import again_key, is_again
from partita.compiler.ir.program import Phase
from partita.compiler.plan.document import Document, Ref
from partita.compiler.plan.uses import find_uses


def check_again(document: Document) -> None:
    """Check that what ``recompute`` lists stands in the plan twice, and nothing else.

    Raises:
        BadPlan: naming what is missing, unlisted, or used on the wrong side.
    """
    listed = set(document.recompute)
    if len(listed) != len(document.recompute):
        raise BadPlan("recompute: found a key twice, wanted each once")
    boxings = {boxing.key for boxing in document.boxings}
    for key in document.recompute:
        if key in document.nodes:
            _check_clone(document, key, listed)
        elif key not in boxings:
            raise BadPlan(
                f"recompute: found {key!r}, wanted the key of a node or of a boxing"
            )
        elif again_key(key) not in boxings:
            raise BadPlan(
                f"recompute: {key!r} is listed, but boxings has no {again_key(key)!r} "
                "for its users of the backward"
            )
    clones = {again_key(key) for key in listed}
    for key in (*document.nodes, *boxings):
        if is_again(key) and key not in clones:
            raise BadPlan(f"recompute: {key!r} is there, but its original not listed")
    for use in find_uses(document):
        if use.ref.key in listed and use.phase is not Phase.FORWARD:
            raise BadPlan(
                f"recompute: {use.consumer!r} of the backward uses {use.ref}, wanted "
                f"{again_key(use.ref.key)!r}"
            )


def _check_clone(document: Document, key: str, listed: Collection[str]) -> None:
    """Check that a node has a clone that does the same, on clones where there are."""
    node, clone = document.nodes[key], document.nodes.get(again_key(key))
    if node.role is not None or node.phase is not Phase.FORWARD:
        raise BadPlan(f"recompute: found {key!r}, wanted a call of the forward")
    if clone is None:
        raise BadPlan(
            f"recompute: {key!r} is listed, but nodes has no {again_key(key)!r}; to "
            "make more again, plan like this one with recompute"
        )
    operands = tuple(
        Ref(again_key(ref.key) if ref.key in listed else ref.key, ref.index)
        for ref in node.operands
    )
    wanted = replace(
        node, operands=operands, phase=Phase.BACKWARD_INPUT, alternatives=()
    )
    for name in ("op", "operands", "types", "constants", "signature", "stage", "phase"):
        found, right = _show(getattr(clone, name)), _show(getattr(wanted, name))
        if found != right:
            raise BadPlan(
                f"nodes.{again_key(key)}.{name}: found {found}, wanted {right} of what "
                "is made again"
            )


def _show(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, cast('tuple[object, ...]', value)))}]"
    return str(value)
