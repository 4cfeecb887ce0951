"""Pins: placements that the user fixes before the search.

A pin names a parameter, buffer, input or node. For a parameter it may fix each of its
placements (``ParameterPlacements``), in any order:

    ``"storage=(B); gradient=(S(0)); optimizer=(S(0)); use=(B)"``

A placement without a word before it is the storage. Gradient and optimizer are as the
storage where they are not fixed, storage and use are then free; a use that is whole on
every axis holds through transposes and other views too. An input's pin says how it
enters: dims that it splits stay split on their way (split_inputs.py), of what is ``B``
a use may still take a slice, which is free of communication. For a node a pin fixes
the placement of its (first) result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from partita.compiler.errors import BadOptions, BadPlacement
from partita.compiler.ir.layout import check_placement
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.held import Held

_WORD = re.compile(r"(storage|gradient|optimizer|use)\s*=")


@dataclass(frozen=True, slots=True)
class Pin:
    """What is fixed for one name: its own placement, and for a parameter the others.

    >>> pin = Pin(None, use=Placement.parse("B"), optimizer=Placement.parse("S(0)"))
    >>> str(pin), parse_pin("w", str(pin)) == pin
    ('optimizer=(S(0),); use=(B,)', True)
    """

    placement: Placement | None
    use: Placement | None = None
    gradient: Placement | None = None
    optimizer: Placement | None = None

    def __str__(self) -> str:
        entries = {
            "storage": self.placement,
            "gradient": self.gradient,
            "optimizer": self.optimizer,
            "use": self.use,
        }
        return "; ".join(f"{word}={p}" for word, p in entries.items() if p is not None)

    def map(self, change: Callable[[Placement], Placement]) -> Pin:
        """Return the pin with every placement that it fixes changed."""
        own = (self.placement, self.use, self.gradient, self.optimizer)
        return Pin(*(None if p is None else change(p) for p in own))

    def held(self, storage: Placement) -> Held:
        """Return how a trained parameter is held that is stored as ``storage``."""
        return Held(self.gradient or storage, self.optimizer or storage)


def parse_pin(name: str, text: object) -> Pin:
    """Read one pin: text, or a placement, which prints as its text.

    Raises:
        BadOptions: naming the pin when it does not parse.
    """
    bare, *rest = _WORD.split(str(text))
    words, texts = rest[::2], rest[1::2]
    if bare.strip(" ;") or not words:
        words, texts = ["storage", *words], [bare, *texts]
    if len(set(words)) != len(words):
        twice = next(word for word in words if words.count(word) > 1)
        raise BadOptions(f"pin {name!r}: fixes the {twice} twice in {str(text)!r}")
    try:
        found = {
            word: Placement.parse(own.strip().removesuffix(";"))
            for word, own in zip(words, texts, strict=True)
        }
    except BadPlacement as error:
        raise BadOptions(f"pin {name!r}: {error}") from error
    return Pin(found.pop("storage", None), **found)


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
    for placement in (pin.placement, pin.gradient, pin.optimizer):
        if stored and placement is not None and placement.has_partial:
            raise BadOptions(
                f"pin {name!r} is illegal: {placement} cannot be stored; want S or B "
                f"per axis (a partial use is 'use={placement}')"
            )
    for placement in (pin.placement, pin.use, pin.gradient, pin.optimizer):
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
