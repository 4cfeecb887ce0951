"""The arguments of a call that are no tensors, as text that tells calls apart."""

from __future__ import annotations

from typing import cast

import torch
from torch import fx

_SEQUENCES = list, tuple
_PLACES = ("device", "pin_memory", "layout")


def print_constants(node: fx.Node) -> tuple[str, ...]:
    """Return a call's arguments that are no tensors, printed; devices left out."""
    found: list[str] = []
    for position, arg in enumerate(node.args):
        if not isinstance(arg, fx.Node):
            text = _text(arg)
            if text is not None:
                found.append(f"{position}={text}")
    for name, arg in sorted(node.kwargs.items()) if node.kwargs else ():
        if name not in _PLACES:
            text = _text(arg)
            if text is not None:
                found.append(f"{name}={text}")
    return tuple(found)


def _text(value: object) -> str | None:
    """Return an argument printed, ``None`` where there is a node in it."""
    if type(value) is int:
        return str(value)
    if isinstance(value, _SEQUENCES):
        items: list[str] = []
        for item in cast("list[object]", value):
            text = _text(item)
            if text is None:
                return None
            items.append(text)
        return f"[{', '.join(items)}]"
    if isinstance(value, fx.Node):
        return None
    return "device" if isinstance(value, torch.device) else str(value)
