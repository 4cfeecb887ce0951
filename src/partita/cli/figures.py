"""A plan's figures for ``--json``: the document without its nodes."""

from __future__ import annotations

from typing import Any

from partita.compiler.plan.plan import Plan

_PARTS = (
    "model",
    "mesh",
    "predicted",
    "collectives",
    "search",
    "parameters",
    "buffers",
    "boxings",
    "reported",
)


def plan_figures(plan: Plan) -> dict[str, Any]:
    """Return what ``partita show`` prints, as it stands in the document."""
    document = plan.to_dict()
    return {part: document[part] for part in _PARTS}
