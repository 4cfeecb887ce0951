"""Pins: placements that the user fixes before the search.

A pin names a parameter, buffer, input or node. For a parameter it fixes the storage;
``use=(...)`` fixes the placement in which the step uses it, alone or after a storage:
``"(S(0), B) use=(B, B)"``; whole on every axis, it holds through transposes and other
views too. An input's pin says how it enters: dims that it splits stay split on their
way (split_inputs.py), of what is ``B`` a use may still take a slice, which is free of
communication. For a node a pin fixes the placement of its (first) result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from partita.compiler.errors import BadOptions, BadPlacement
from partita.compiler.ir.layout import check_placement
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType


@dataclass(frozen=True, slots=True)
class Pin:
    """What is fixed for one name: its own placement, and that of its uses."""

    placement: Placement | None
    use: Placement | None = None


def parse_pin(name: str, text: object) -> Pin:
    """Read one pin: text, or a placement, which prints as its text.

    Raises:
        BadOptions: naming the pin when it does not parse.
    """
    own, marker, use = str(text).partition("use=")
    try:
        placement = Placement.parse(own) if own.strip() else None
        return Pin(placement, Placement.parse(use) if marker else None)
    except BadPlacement as error:
        raise BadOptions(f"pin {name!r}: {error}") from error


def check_pin(
    name: str, pin: Pin, type_: TensorType, mesh: Mesh, stored: bool = False
) -> None:
    """Check that a pin is legal for the tensor it names.

    Args:
        name: what the pin names.
        pin: what it fixes.
        type_: the tensor's logical type.
        mesh: the ranks.
        stored: whether it is kept from step to step (a parameter, a buffer).

    Raises:
        BadOptions: naming the pin, the shape and what is wrong.
    """
    if stored and pin.placement is not None and pin.placement.has_partial:
        raise BadOptions(
            f"pin {name!r} is illegal: {pin.placement} cannot be stored; want S or B "
            f"per axis (a partial use is 'use={pin.placement}')"
        )
    for placement in (pin.placement, pin.use):
        if placement is None:
            continue
        try:
            check_placement(type_.shape, placement, mesh)
        except BadPlacement as error:
            raise BadOptions(f"pin {name!r} is illegal for {type_}: {error}") from error


def parse_pins(pins: Mapping[str, str], known: Iterable[str]) -> dict[str, Pin]:
    """Read all pins.

    Raises:
        BadOptions: for a name that the model does not have, with the closest ones.
    """
    names = set(known)
    for name in pins:
        if name not in names:
            close = get_close_matches(name, names, n=3)
            hint = f"; did you mean {', '.join(map(repr, close))}?" if close else ""
            raise BadOptions(
                f"pin {name!r} names no parameter, buffer, input or node{hint}"
            )
    return {name: parse_pin(name, text) for name, text in pins.items()}
