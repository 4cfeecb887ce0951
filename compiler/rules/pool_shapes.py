"""Dims of pools, whose windows slide over the last dims of images."""

from __future__ import annotations

from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.rules.rule import Call
from partita.compiler.rules.shapes import arrow
from partita.compiler.rules.windows import Mark, dims_of, marks_of, of_pool


def average(call: Call) -> str:
    """Return space, which is split where windows tile it."""
    image, made = _averaged(call, 1, call.operands[0], call.results[0])
    return arrow([image], [made])


def average_backward(call: Call) -> str:
    """Return the dims of ``average`` the other way round."""
    image, made = _averaged(call, 2, call.operands[1], call.operands[0])
    return arrow([made, image], [image])


def _averaged(
    call: Call, position: int, image: TensorType, made: TensorType | None
) -> tuple[str, str]:
    windows = of_pool(call, position)
    marks = marks_of(windows, image, made)
    inner, outer = dims_of(windows, [mark if mark == "" else None for mark in marks])
    return f"* {inner}", f"* {' '.join(outer)}"


def maximum(call: Call) -> str:
    """Return space, which is split in chunks: indices are those of all of it."""
    image, made = _maximum(call, 1, call.operands[0], call.results[0])
    return arrow([image], [made, made])


def maximum_backward(call: Call) -> str:
    """Return the dims of ``maximum`` the other way round."""
    image, made = _maximum(call, 2, call.operands[1], call.operands[0])
    return arrow([made, image, made], [image])


def _maximum(
    call: Call, position: int, image: TensorType, made: TensorType | None
) -> tuple[str, str]:
    windows = of_pool(call, position)
    marks: list[Mark] = [
        None if mark is None or window.dilation > 1 else "!~"
        for window, mark in zip(windows, marks_of(windows, image, made), strict=True)
    ]
    if not image.dtype.is_floating_point:
        marks = [None] * len(marks)  # there is no number below all others
    inner, outer = dims_of(windows, marks)
    return f"* {inner}", f"* {' '.join(outer)}"
