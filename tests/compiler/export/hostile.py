"""A plan whose names try to break out of every quoted string."""

from __future__ import annotations

from typing import Any, cast

from partita.compiler.plan.plan import Plan

NAME = 'x"\'];\\"}})>]]> --> </data>\n"""\x1b[2J#{0}\\N$(id)`%s`\u202e\\'
"""What stands in for the name of a module."""


def hostile_plan(plan: Plan) -> Plan:
    """Return the small plan by hand with that name, and as its class and its source."""
    data = _renamed(plan.to_dict())
    data["model"]["class"] = NAME
    for node in data["nodes"].values():
        node["source"] = NAME
    return Plan.from_dict(data)


def _renamed(value: Any) -> Any:
    if isinstance(value, str):
        changed = value.replace("up/", f"{NAME}/").replace("up.w", f"{NAME}.w")
        return NAME if changed == "up" else changed
    if isinstance(value, list):
        return [_renamed(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {_renamed(key): _renamed(item) for key, item in items}
    return value
