"""Dims of solvers: matrices are whole, stacks of them and what is solved for split."""

from __future__ import annotations

from partita.compiler.rules.rule import Call
from partita.compiler.rules.shapes import arrow


def decomposed(call: Call) -> str:
    """Return stacks of matrices and of their factors, those that are asked for."""
    ndim = call.operands[0].ndim
    texts = {ndim: "* ? ?", ndim - 1: "* ?"}
    found = (0 if result is None else result.ndim for result in call.results)
    return f"* ? ? -> {', '.join(texts.get(n, '?') for n in found)}"


def solve(call: Call) -> str:
    """Return stacks of matrices and of columns, and the factors that were found.

    Those are of the matrices alone: whoever solves a part of what one matrix serves
    has the same factors.
    """
    matrix, sides = call.operands
    if sides.ndim == 1 or sides.shape == matrix.shape[:-1]:
        return "* ? ?, * ? -> * ?, * ? ?, * ?, *"
    solved, columns = call.results[0], _columns(call).removeprefix("* ")
    assert solved is not None
    sizes = {f"b{dim}": size for dim, size in enumerate(solved.shape[:-2])}
    names = list(sizes)
    own, given = names[solved.ndim - matrix.ndim :], names[solved.ndim - sides.ndim :]
    held = [
        name if size == sizes[name] else "1"
        for name, size in zip(own, matrix.shape, strict=False)
    ]
    same = [f"={name}" for name in names if name not in held]
    factors = [_row(*held, dims, *same, "=k") for dims in ("? ?", "?", "")]
    operands = [_row(*own, "? ?"), _row(*given, columns)]
    return arrow(operands, [_row(*names, columns), *factors])


def _row(*dims: str) -> str:
    return " ".join(filter(None, dims))


def lu_solve(call: Call) -> str:
    """Return stacks of factors, of pivots and of columns."""
    return f"* ? ?, * ?, {_columns(call)} -> {_columns(call)}"


def solve_triangular(call: Call) -> str:
    """Return stacks of matrices and of columns."""
    return f"* ? ?, {_columns(call)} -> {_columns(call)}"


def _columns(call: Call) -> str:
    """Return columns, each solved by itself; rows where they stand on the left."""
    return "* ? k" if dict(call.kwargs).get("left", True) else "* k ?"


def sorted_in(call: Call) -> str:
    """Return numbers that are looked up in one row, or each stack in its own.

    What sorts the rows, where they are not sorted themselves, is as they are.
    """
    rows, _, *sorters = call.operands
    row, found = ("?", "*") if rows.ndim == 1 else ("* ?", "* k")
    return arrow([row, found, *[row] * len(sorters)], [found])
