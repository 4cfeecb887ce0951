"""Calls read back from what a plan prints of them.

A plan names ops and prints their constant arguments, for people; most of them read
back. Nothing is called here.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch

from partita.compiler.capture.schemas import tensor_slots

T = TypeVar("T")

_VALUES: Mapping[str, object] = {
    str(value): value
    for value in (
        *(vars(torch).values()),
        torch.contiguous_format,
        torch.channels_last,
        torch.preserve_format,
    )
    if isinstance(value, torch.dtype | torch.memory_format)
} | {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}


def find_op(name: str) -> Any | None:
    """Return the op that ``aten.mm.default`` names, ``None`` where torch has none."""
    parts = name.split(".")
    if len(parts) != 3 or not all(parts):
        return None
    namespace, packet, overload = parts
    found = getattr(getattr(torch.ops, namespace), packet, None)
    return getattr(found, overload, None)


def read_arguments(
    target: Any, constants: Sequence[str], given: Sequence[T]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call: constants where they stand, operands between.

    Args:
        target: the op that is called.
        constants: its other arguments, as a plan prints them: ``1=[1, 0]``, ``dim=1``.
        given: what stands for the operands, in order.

    Raises:
        ValueError: when there are more operands than the op has places.

    >>> read_arguments(torch.ops.aten.permute.default, ("1=[1, 0]",), ("x",))
    (('x', [1, 0]), {})
    """
    named = dict(text.split("=", 1) for text in constants)
    args = _positional(tensor_slots(target), named, given)
    return args, {k: _read(v) for k, v in named.items() if not k.isdecimal()}


def _positional(
    slots: Sequence[str], named: Mapping[str, str], given: Sequence[T]
) -> tuple[Any, ...]:
    left = list(given)
    args: list[Any] = []
    for position, slot in enumerate(slots):
        if str(position) in named:
            args.append(_read(named[str(position)]))
        elif not left:
            break
        elif slot == "many":
            later = range(position + 1, len(slots))
            alone = [p for p in later if slots[p] == "one" and str(p) not in named]
            num = max(len(left) - len(alone), 1)
            args.append(left[:num])
            left = left[num:]
        else:
            args.append(left.pop(0))
    if left:
        raise ValueError(f"{len(left)} operands have no place")
    return tuple(args)


def _read(text: str) -> object:
    """Return the value of a constant; text that is none is a string."""
    if text in _VALUES:
        return _VALUES[text]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
