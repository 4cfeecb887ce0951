"""What a rank passes to an op where the logical call states a size."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from partita.compiler.errors import BadRule
from partita.compiler.rules.rule import Rule

Shape = tuple[int, ...]


def localize_args(
    rule: Rule,
    args: tuple[Any, ...],
    operands: Sequence[Shape],
    results: Sequence[Shape | None],
) -> tuple[Any, ...]:
    """Return the positional arguments of a call as one rank makes it.

    Args:
        rule: its row; the column ``localize`` names the argument that changes.
        args: those of the logical call; what stands for a tensor is handed on.
        operands: the shapes of the rank's shards of the operands.
        results: those of its shards of the results.

    >>> reshape = Rule("aten.reshape.default", "(a b) -> a b", localize="shape@1")
    >>> localize_args(reshape, ("x", [8, 4]), [(16,)], [(4, 4)])
    ('x', [4, 4])
    """
    if not rule.localize:
        return args
    match = re.fullmatch(
        r"(shape|pieces|cut|padded|groups|chunks)@(\d+)", rule.localize
    )
    if match is None:
        raise BadRule(f"rule {rule.op}: {rule.localize!r} is not of the form shape@1")
    at = int(match[2])
    match match[1]:
        case "shape":
            stated: object = list(results[0] or ())
        case "pieces":
            (dim,) = args[at + 1 : at + 2] or (0,)
            stated = [shape[dim] for shape in results if shape is not None]
        case "cut":
            stated = args[at]
            (made,) = results
            assert made is not None
            args = _with_bounds(args, at, made[args[at]])
        case "padded":
            stated = list(results[0] or ())
            dim, size = args[at + 1], args[at][args[at + 1]]
            bounds = slice(*args[at + 2 : at + 5]).indices(size)
            args = (*args[: at + 2], *bounds)
            args = _with_bounds(args, at + 1, operands[0][dim])
        case "chunks":
            sizes = list(results[0] or ())
            pairs = zip(args[at], args[at + 1], sizes, strict=True)
            stated = [num if size == whole else 1 for num, whole, size in pairs]
            args = (*args[: at + 1], sizes, *args[at + 2 :])
        case _:
            stated = _groups(at, bool(args[at - 2]), operands, results)
            args = _with_bias_sizes(args, at, results)
    return (*args[:at], stated, *args[at + 1 :])


def _with_bounds(args: tuple[Any, ...], at: int, size: int) -> tuple[Any, ...]:
    """Return the arguments of a slice of which a rank has ``size`` along its dim.

    The bounds stand behind the dim. A slice of neighbours is a piece between others,
    each of which has shrunk alike; one with a step has taken one of each ``step``.
    """
    start, stop, step = (*args[at + 1 : at + 4], 1)[:3]
    whole = len(range(start, stop, step))
    if size == whole:
        return args
    if step == 1:
        start = start * size // whole
    return (*args[: at + 1], start, start + size * step, step, *args[at + 4 :])


def _with_bias_sizes(
    args: tuple[Any, ...], at: int, results: Sequence[Shape | None]
) -> tuple[Any, ...]:
    """Return a convolution's arguments; its backward (groups at 9) states a bias."""
    if at == 8 or args[3] is None or results[2] is None:
        return args
    return (*args[:3], list(results[2]), *args[4:])


def _groups(
    at: int,
    is_transposed: bool,
    operands: Sequence[Shape],
    results: Sequence[Shape | None],
) -> int:
    """Return a convolution's groups: the channels over those that a weight sees.

    A transposed convolution's weight sees the channels of the output. In the backward
    (whose argument 9 is the groups) that gradient comes first.
    """
    first = at - 8
    image, weight = operands[first], operands[first + 1]
    if is_transposed:
        output = operands[0] if first else results[0]
        assert output is not None
        image = output
    return image[1] // weight[1]
