"""Dims of the ops on chunks: ``chunk_ops.py`` and ``chunked_images.py``."""

from __future__ import annotations

from typing import Any

from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.rules.rule import Call
from partita.compiler.rules.shapes import arrow, dim_names, ints


def _in_chunks(call: Call, position: int) -> tuple[list[str], int, str]:
    """Return names of the dims of operand 0, which is in chunks, and how many.

    Args:
        call: what is called.
        position: of the argument that names the dim.
    """
    names = dim_names(call.operands[0].ndim)
    (dim,) = ints(call.args[position])
    num = max(ints(call.args[-2]))
    names[dim] = f"r~:{num}"
    return names, dim, str(num)


def scan(call: Call) -> str:
    """Return dims of which one is in chunks on both sides."""
    names, _, _ = _in_chunks(call, 1)
    return arrow([" ".join(names)], [" ".join(names)])


def chunk_fill(call: Call) -> str:
    """Return an element per chunk, and the chunks that it fills."""
    names, _, _ = _in_chunks(call, 2)
    text = " ".join(names)
    return arrow([text, text], [text])


def scan_sum(call: Call) -> str:
    """Return ``0`` for sums."""
    return "0" if call.args[2] == "cumsum" else ""


def scan_extreme(call: Call) -> str:
    """Return the dims of ``scan``, and the positions along the one."""
    names, dim, _ = _in_chunks(call, 2)
    text = " ".join(names)
    return arrow([text, names[dim]], [text, text])


def chunk_ends(call: Call) -> str:
    """Return dims of which one has an element per chunk in the result."""
    names, dim, num = _in_chunks(call, 1)
    out = [*names[:dim], f"r~&:{num}", *names[dim + 1 :]]
    return arrow([" ".join(names)], [" ".join(out)])


def chunk_heads(call: Call) -> str:
    """Return blocks of each chunk, and one behind them."""
    return _blocks(call, "{0}|1")


def chunk_tails(call: Call) -> str:
    """Return one block, and those of each chunk behind it."""
    return _blocks(call, "1|{0}")


def _blocks(call: Call, pieces: str) -> str:
    names, dim, num = _in_chunks(call, 1)
    inner = [*names[:dim], "?", *names[dim + 1 :]]
    block = f"r~&:{num}{{{pieces.format(num)}}}"
    return arrow([" ".join(names)], [" ".join([block, *inner])])


def widen(call: Call) -> str:
    """Return chunks, and the blocks of their neighbours where they are asked for."""
    names, dim, num = _in_chunks(call, 3)
    inner = " ".join([*names[:dim], "?", *names[dim + 1 :]])
    operands = [" ".join(names)]
    for given, pieces in ((call.args[1], f"{num}|1"), (call.args[2], f"1|{num}")):
        if given is not None:
            operands.append(f"r~:{num}{{{pieces}}} {inner}")
    return arrow(operands, [" ".join(names)])


# Images


def _space(chunks: list[int], image: Any) -> tuple[list[str], list[str]]:
    """Return the dims of images in chunks, and names that count what is not there.

    A dim of ``n`` chunks of at most ``m`` rows counts both, for the flops.

    Args:
        chunks: how many there are of each spatial dim.
        image: what is in chunks, batch and channels first.
    """
    names: list[str] = []
    others: list[str] = []
    for dim in range(_MAX_SPATIAL):
        if dim >= len(chunks):
            others += [f"y{dim}:1", f"m{dim}:1", f"k{dim}:1"]
        elif chunks[dim] == 1:
            names.append(f"y{dim}^")
            others.append(f"m{dim}:1")
        else:
            rows = -(-image.shape[2 + dim] // chunks[dim])
            names.append(f"(y{dim}~:{chunks[dim]} m{dim}^:{rows})")
    return names, others


_MAX_SPATIAL = 3


def _wide(chunks: list[int]) -> str:
    """Return the spatial dims of images whose chunks have rows around them."""
    return " ".join(
        "?" if num == 1 else f"y{dim}~:{num}" for dim, num in enumerate(chunks)
    )


def _kernel(weight: Any, others: list[str]) -> str:
    """Return the dims of a kernel; the last one has names that count nothing."""
    names = [f"k{dim}^" for dim in range(weight.ndim - 2)]
    last = " ".join([names.pop(), *others])
    return " ".join([*names, f"({last})" if " " in last else last])


def chunked_convolution(call: Call) -> str:
    """Return the dims of ``convolution``, with chunks of space on both sides."""
    weight, image = call.operands[1], call.results[0]
    positions, others = _space(ints(call.args[-2])[2:], image)
    inputs, outputs = f"(g:{_groups(call)} i)", f"(g:{_groups(call)} o)"
    x = f"b {inputs} {_wide(ints(call.args[-2])[2:])}"
    kernel = f"{outputs} i {_kernel(weight, others)}"
    operands = [x, kernel, outputs][: len(call.operands)]
    return arrow(operands, [f"b {outputs} {' '.join(positions)}"])


def chunked_convolution_input(call: Call) -> str:
    """Return the dims of the gradient of ``chunked_convolution``'s input."""
    grad, weight = call.operands
    chunks = ints(call.args[-2])[2:]
    positions, others = _space(chunks, grad)
    inputs, outputs = f"(g:{_groups(call)} i)", f"(g:{_groups(call)} o)"
    kernel = f"{outputs} i {_kernel(weight, others)}"
    image = f"b {outputs} {' '.join(positions)}"
    return arrow([image, kernel], [f"b {inputs} {_wide(chunks)}"])


def chunked_convolution_weight(call: Call) -> str:
    """Return the dims of the gradient of a weight, one of it for each chunk."""
    grad, result = call.operands[0], call.results[0]
    assert result is not None
    num = grad.ndim - 2
    chunks = ints(call.args[-2])[:num]
    positions, others = _space(chunks, grad)
    inputs, outputs = f"(g:{_groups(call)} i)", f"(g:{_groups(call)} o)"
    of_chunks = [f"y{d}~:{n}" if n > 1 else "1" for d, n in enumerate(chunks)]
    kernel = (
        f"{outputs} i {_kernel(TensorType(result.shape[num:], result.dtype), others)}"
    )
    image, x = f"b {outputs} {' '.join(positions)}", f"b {inputs} {_wide(chunks)}"
    return arrow([image, x], [f"{' '.join(of_chunks)} {kernel}"])


def _groups(call: Call) -> int:
    return ints(call.args[-3])[0]


def chunked_pool(call: Call) -> str:
    """Return dims in chunks on both sides; of the positions, those of two."""
    chunks = ints(call.args[-2])[-2:]
    leading = " ".join(dim_names(call.operands[0].ndim - 2))
    names = [f"y{d}~:{n}" if n > 1 else "?" for d, n in enumerate(chunks)]
    images = [
        " ".join([leading, *names]) if x.ndim > 1 else names[at - len(call.operands)]
        for at, x in enumerate(call.operands)
    ]
    return arrow(images, [" ".join([leading, *names])] * len(call.results))
