"""Dims and linearity of ops where they depend on the arguments.

Each function returns, for one call, the same text that a plain row holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any

from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.rules.rule import Call, Text


def dim_names(ndim: int) -> list[str]:
    """Return one name per dim."""
    return [f"d{dim}" for dim in range(ndim)]


def arrow(operands: Sequence[str], results: Sequence[str]) -> str:
    """Return the text of a whole call from that of each tensor."""
    return f"{', '.join(operands)} -> {', '.join(results)}"


def whole(call: Call) -> str:
    """Return the text of a call of which nothing is split."""
    return arrow(["?"] * len(call.operands), ["?"] * len(call.results))


def ints(value: Any) -> list[int]:
    """Return an argument that is one number, several or ``None`` as a list."""
    return [value] if isinstance(value, int) else list(value or ())


# Elementwise


def elementwise(call: Call) -> str:
    """Return dims that broadcast, for as many tensors as there are."""
    return arrow(["*"] * len(call.operands), ["*"] * len(call.results))


def sum_of_tensors(call: Call) -> str:
    """Return ``0+1``; a number added to a tensor makes it affine unless it is zero.

    Sums that begin with one, as Python's ``sum`` does, have a zero.
    """
    if len(call.operands) == 2:
        return "0+1"
    return "0" if call.arg(1) == 0 else ""


def product_of_tensors(call: Call) -> str:
    """Return ``0*1``, or ``0`` where the other factor is a number."""
    return "0*1" if len(call.operands) == 2 else "0"


def quotient(call: Call) -> str:
    """Return the numerator, unless the quotient is rounded."""
    return "" if dict(call.kwargs).get("rounding_mode") else "0"


def linear_if_zero(position: int) -> Text:
    """Return ``0`` where the number that argument ``position`` fills in is zero."""

    def linear(call: Call) -> str:
        return "0" if call.arg(position, 0) == 0 else ""

    return linear


def linear_where(call: Call) -> str:
    """Return ``1``, the tensor chosen from, where what replaces it is zero."""
    numbers = [arg for arg in call.args if not isinstance(arg, TensorType)]
    return "1" if numbers == [0] else ""


# One dim apart from the others


def along(position: int, default: int = -1, mark: str = "") -> Text:
    """Keep whole the dims that argument ``position`` names, in every tensor.

    With a ``mark``, ``!`` or ``!~``, they can be split where the op is taken apart.
    """

    def dims(call: Call) -> str:
        names = dim_names(call.operands[0].ndim)
        stated = dict(call.kwargs).get("dim", call.arg(position, default))
        for dim in ints(stated):
            if names:
                names[dim] = f"{names[dim]}{mark}" if mark else "?"
        text = " ".join(names)
        return arrow([text or "?"] * len(call.operands), [text] * len(call.results))

    return dims


def reduced(position: int, reducible: bool = True) -> Text:
    """Take away the dims that argument ``position`` names (none named: all).

    The argument after it says whether they stay, with size one.
    """

    def dims(call: Call) -> str:
        names = dim_names(call.operands[0].ndim)
        taken = ints(call.arg(position, None)) or list(range(len(names)))
        out: list[str] = list(names)
        for dim in taken if names else ():
            out[dim] = "1" if call.arg(position + 1, False) else ""
            names[dim] = names[dim] if reducible else "?"
        result = " ".join(name for name in out if name)
        return arrow([" ".join(names) or "?"], [result] * len(call.results))

    return dims


def reduced_to_bool(call: Call) -> str:
    """Take away the dims that are named: an empty list of them names none."""
    named = call.arg(1, None)
    if named is not None and not ints(named):
        return "* -> *"
    dims = reduced(1, False)
    assert not isinstance(dims, str)
    return dims(call)


def histogram(call: Call) -> str:
    """Add up counts of all elements, unless the bounds are found among them."""
    if call.arg(2, 0) == call.arg(3, 0):
        return whole(call)
    return arrow([" ".join(dim_names(call.operands[0].ndim)) or "?"], ["?"])


def select(call: Call) -> str:
    """Return dims without the one that is selected from."""
    names, out = dim_names(call.operands[0].ndim), dim_names(call.operands[0].ndim)
    for dim in ints(call.args[1]):
        names[dim] = f"{names[dim]}!"
        del out[dim]
    return arrow([" ".join(names)], [" ".join(out)])


def select_backward(call: Call) -> str:
    """Return dims with the one that was selected from put back."""
    ndim = call.operands[0].ndim + 1
    names, out = dim_names(ndim), dim_names(ndim)
    for dim in ints(call.args[2]):
        del names[dim]
        out[dim] = f"{out[dim]}!"
    return arrow([" ".join(names) or "?"], [" ".join(out)])


def slice_(call: Call) -> str:
    """Share the dims that keep their size; one that is cut is looked up by row."""
    (result,) = call.results
    assert result is not None
    names, out = _cut(call.operands[0].shape, result.shape)
    return arrow([names], [out])


def slice_backward(call: Call) -> str:
    """Share the dims that keep their size; into a longer one rows are put."""
    (result,) = call.results
    assert result is not None
    names, out = _cut(result.shape, call.operands[0].shape)
    return arrow([out], [names])


def _cut(whole: Sequence[int], part: Sequence[int]) -> tuple[str, str]:
    """Name the dims of a tensor, and those of a slice of it."""
    names = dim_names(len(whole))
    cut = [
        name if a == b else f"{name}!"
        for name, a, b in zip(names, whole, part, strict=True)
    ]
    out = [
        name if a == b else "?" for name, a, b in zip(names, whole, part, strict=True)
    ]
    return " ".join(cut), " ".join(out)


def slice_scatter(call: Call) -> str:
    """Share the dims that the source fills."""
    return _filled(call, call.operands[1].shape)


def select_scatter(call: Call) -> str:
    """Return the source's dims and the one it is put into, which is whole."""
    x, source = dim_names(call.operands[0].ndim), dim_names(call.operands[0].ndim)
    for dim in ints(call.args[2]):
        x[dim] = "?"
        del source[dim]
    text = " ".join(x)
    return arrow([text, " ".join(source) or "?"], [text])


def _filled(call: Call, shape: tuple[int, ...]) -> str:
    names = [
        name if size == other else "?"
        for name, size, other in zip(
            dim_names(len(shape)), call.operands[0].shape, shape, strict=True
        )
    ]
    text = " ".join(names) or "?"
    return arrow([text] * len(call.operands), [text])


def pad(call: Call) -> str:
    """Share the dims that are not padded; pads are stated from the last dim on."""
    names = dim_names(call.operands[0].ndim)
    pads = ints(call.args[1])
    for at in range(len(pads) // 2):
        if pads[2 * at] or pads[2 * at + 1]:
            names[-1 - at] = "?"
    text = " ".join(names)
    return arrow([text or "?"], [text])


# Reshaping


def reshape(call: Call) -> str:
    """Return the nested factors that both shapes are made of, outermost first.

    Common factors are taken from the outside, then from the inside; what is left of
    either shape between them is whole.

    >>> from partita.compiler.rules.rule import Call
    >>> def dims(old, new):
    ...     old, new = TensorType.parse(f"f32{old}"), TensorType.parse(f"f32{new}")
    ...     return reshape(Call("reshape", (), (), (old,), (new,)))
    >>> dims([8, 6, 1], [2, 4, 6])
    '(f0:2 f1:4) f2:6 1 -> f0:2 f1:4 f2:6'
    >>> dims([6, 10], [4, 15])
    '(f0:2 l0^:3) (l1^:2 f1:5) -> (f0:2 r0^:2) (r1^:3 f1:5)'
    """
    (operand,), (result,) = call.operands, call.results
    assert result is not None
    if operand.numel == 0:
        return whole(call)
    left, right = _Factored(operand.shape, "l"), _Factored(result.shape, "r")
    count = 0
    for end in (0, -1):
        while (size := gcd(left.size_at(end), right.size_at(end))) > 1:
            left.take(end, f"f{count}:{size}", size)
            right.take(end, f"f{count}:{size}", size)
            count += 1
    return arrow([left.text() or "?"], [right.text()])


class _Factored:
    """A shape from whose ends factors are taken, and what is left of its dims."""

    def __init__(self, shape: tuple[int, ...], rest: str) -> None:
        self.left = list(shape)
        self.outer: list[list[str]] = [[] for _ in shape]
        self.inner: list[list[str]] = [[] for _ in shape]
        self.rest = rest

    def _dim_at(self, end: int) -> int | None:
        found = [dim for dim, size in enumerate(self.left) if size > 1]
        return found[end] if found else None

    def size_at(self, end: int) -> int:
        dim = self._dim_at(end)
        return 1 if dim is None else self.left[dim]

    def take(self, end: int, name: str, size: int) -> None:
        dim = self._dim_at(end)
        assert dim is not None
        self.left[dim] //= size
        if end == 0:
            self.outer[dim].append(name)
        else:
            self.inner[dim].insert(0, name)

    def text(self) -> str:
        dims: list[str] = []
        for dim, size in enumerate(self.left):
            rest = [f"{self.rest}{dim}^:{size}"] if size > 1 else []
            words = [*self.outer[dim], *rest, *self.inner[dim]]
            dims.append(
                f"({' '.join(words)})" if len(words) > 1 else (words or ["1"])[0]
            )
        return " ".join(dims)


def permute(call: Call) -> str:
    """Return the dims in their new order."""
    names = dim_names(call.operands[0].ndim)
    order = ints(call.args[1])
    return arrow([" ".join(names) or "?"], [" ".join(names[dim] for dim in order)])


# Pieces


def _with_piece(ndim: int, dim: int, pieces: Sequence[int]) -> str:
    """Return a dim that is so many pieces of a factor; an empty one has none of it."""
    names = dim_names(ndim)
    sizes = "|".join([str(size) for size in pieces if size])
    names[dim] = f"n{{{sizes}}}" if sizes else "?"
    return " ".join(names)


def concatenate(call: Call) -> str:
    """Return a dim in pieces, of which each operand has one.

    Among operands of more dims torch takes an empty one of one dim for nothing.
    """
    dim, ndim = ints(call.arg(1, 0))[0], max(tensor.ndim for tensor in call.operands)
    sizes = [t.shape[dim] if t.ndim == ndim else 0 for t in call.operands]
    pieces = [
        _with_piece(ndim, dim, [size]) if tensor.ndim == ndim else "?"
        for tensor, size in zip(call.operands, sizes, strict=True)
    ]
    return arrow(pieces, [_with_piece(ndim, dim, sizes)])


def split(call: Call) -> str:
    """Return a dim in pieces, of which each result has one."""
    sizes, dim = ints(call.args[1]), ints(call.arg(2, 0))[0]
    ndim = call.operands[0].ndim
    pieces = [_with_piece(ndim, dim, [size]) for size in sizes]
    return arrow([_with_piece(ndim, dim, sizes)], pieces)
