"""Profiles from and to JSON; ``hardware.schema.json`` says their form.

What a profile leaves at its default does not stand in the document.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any

from partita.compiler.errors import BadOptions
from partita.compiler.form import Form
from partita.compiler.hardware.device import (
    FLAT,
    Cache,
    Device,
    MatmulCurve,
    OpRate,
    Tile,
)
from partita.compiler.hardware.links import (
    Algorithm,
    CollectiveCost,
    CollectiveKind,
    Link,
)
from partita.compiler.plan.units import shortened

_SCHEMA = Path(__file__).parent / "hardware.schema.json"


def device_to_dict(device: Device) -> dict[str, Any]:
    """Return the entries of a device."""
    entries: dict[str, Any] = {
        "kind": device.kind,
        "flops_per_s": dict(device.flops_per_s),
        "memory_bytes_per_s": device.memory_bytes_per_s,
        "memory_bytes": device.memory_bytes,
        "launch_s": device.launch_s,
    }
    if device.matmul != FLAT:
        curve = device.matmul
        entries["matmul"] = {
            "units": curve.units,
            "tiles": [
                {"m": tile.m, "n": tile.n, "efficiency": tile.efficiency}
                for tile in curve.tiles
            ],
            "splits": list(curve.splits),
            "half_m": curve.half_m,
            "half_n": curve.half_n,
            "half_k_bytes": curve.half_k_bytes,
        }
    if device.caches:
        entries["caches"] = [
            {"bytes": cache.bytes, "bytes_per_s": cache.bytes_per_s}
            for cache in device.caches
        ]
    if device.ops:
        entries["ops"] = {
            op: {
                "flops_per_s": dict(rate.flops_per_s),
                "bytes_per_s": rate.bytes_per_s,
            }
            for op, rate in device.ops.items()
        }
    return entries


def device_from_dict(entries: Mapping[str, Any]) -> Device:
    """Return the device of valid entries."""
    curve = entries.get("matmul")
    return Device(
        kind=entries["kind"],
        flops_per_s=entries["flops_per_s"],
        memory_bytes_per_s=entries["memory_bytes_per_s"],
        memory_bytes=entries["memory_bytes"],
        launch_s=entries["launch_s"],
        matmul=FLAT if curve is None else _curve(curve),
        caches=tuple(Cache(**cache) for cache in entries.get("caches", ())),
        ops={op: OpRate(**rate) for op, rate in entries.get("ops", {}).items()},
    )


def _curve(entries: Mapping[str, Any]) -> MatmulCurve:
    tiles = tuple(Tile(**tile) for tile in entries["tiles"])
    return MatmulCurve(
        units=entries["units"],
        tiles=tiles,
        splits=tuple(entries.get("splits", (1,))),
        half_m=entries.get("half_m", 0.0),
        half_n=entries.get("half_n", 0.0),
        half_k_bytes=entries.get("half_k_bytes", 0.0),
    )


def link_to_dict(link: Link) -> dict[str, Any]:
    """Return the entries of a link; an infinite bandwidth is null there."""
    costs = {kind.value: _cost_to_dict(cost) for kind, cost in link.costs.items()}
    return {"name": link.name, "ranks": link.ranks, "costs": costs}


def _cost_to_dict(cost: CollectiveCost) -> dict[str, Any]:
    entries: dict[str, Any] = {
        "alpha_s": cost.alpha_s,
        "bytes_per_s": None if cost.bytes_per_s == inf else cost.bytes_per_s,
    }
    if cost.base_s:
        entries["base_s"] = cost.base_s
    if cost.algorithm is not Algorithm.RING:
        entries["algorithm"] = cost.algorithm.value
    if cost.by_size:
        entries["by_size"] = {str(size): rate for size, rate in cost.by_size}
    if cost.others:
        entries["others"] = [_cost_to_dict(other) for other in cost.others]
    return entries


def link_from_dict(entries: Mapping[str, Any]) -> Link:
    """Return the link of valid entries."""
    costs = {
        CollectiveKind(kind): _cost(cost) for kind, cost in entries["costs"].items()
    }
    return Link(entries["name"], entries["ranks"], costs)


def _cost(entries: Mapping[str, Any]) -> CollectiveCost:
    bytes_per_s = entries["bytes_per_s"]
    by_size = {int(size): rate for size, rate in entries.get("by_size", {}).items()}
    return CollectiveCost(
        alpha_s=entries["alpha_s"],
        bytes_per_s=inf if bytes_per_s is None else bytes_per_s,
        base_s=entries.get("base_s", 0.0),
        algorithm=Algorithm(entries.get("algorithm", Algorithm.RING)),
        by_size=tuple(sorted(by_size.items())),
        others=tuple(_cost(other) for other in entries.get("others", ())),
    )


@lru_cache
def _form() -> Form:
    return Form(json.loads(_SCHEMA.read_text(encoding="utf-8")))


def validated(document: Any, where: str) -> dict[str, Any]:
    """Return ``document`` when it fits the schema; else say what does not, and how."""
    try:
        errors = sorted(_form().errors(document), key=lambda e: list(map(str, e.path)))
    except RecursionError:
        raise BadOptions(f"{where}: found too many nested brackets") from None
    if not errors:
        return document
    error = errors[0]
    instance: Any = error.instance
    path = ".".join(str(part) for part in error.absolute_path)
    schema = error.schema
    assert isinstance(schema, Mapping)
    wanted = schema.get("description", "")
    match error.validator:
        case "required":
            key = next(k for k in schema["required"] if k not in instance)
            what = f"{path or 'it'} has no key {key!r}"
        case "additionalProperties":
            key = next(k for k in instance if k not in schema["properties"])
            what = f"{path or 'it'} has an unknown key {key!r}"
            wanted = "one of " + ", ".join(schema["properties"])
        case _:
            is_float = isinstance(instance, float)  # nan has no form in JSON
            found = repr(instance) if is_float else json.dumps(instance, default=str)
            what = f"{path or 'it'} is {shortened(found)}"
    raise BadOptions(f"{where}: {what}; want {wanted}")
