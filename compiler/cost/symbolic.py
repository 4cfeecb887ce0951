"""Wire bytes of a boxing as a sympy expression.

Its symbols are ``d0, d1, ...`` for the sizes of the logical dims, ``itemsize``, and
the names of the mesh axes for their sizes. Sizes of segments are numbers, for they
belong to the placement.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod

import sympy

from partita.compiler.cost.boxing import step_sent_bytes
from partita.compiler.cost.collectives import CollectiveKind, is_exchanged
from partita.compiler.cost.step import (
    Step,
    has_cut_chunks,
    is_uneven_exchange,
    step_wire_bytes,
)
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement, Split
from partita.compiler.ir.tensor_type import TensorType


def boxing_bytes_expr(
    type: TensorType,
    steps: tuple[Step, ...],
    mesh: Mesh,
    hardware: Hardware | None = None,
) -> sympy.Expr:
    """Return the bytes that a rank sends in ``steps``.

    Only the number of dims and the names of the axes matter, except to a step with
    segments that cut an earlier axis's chunks and to an exchange of uneven shards: what
    those send is a number. Sums are sent as ``hardware`` carries them out, all as its
    own all-reduces unless it is given.

    >>> from partita.compiler.cost.step import find_step
    >>> t, mesh = TensorType.parse("f32[8, 4]"), Mesh(tp=2)
    >>> s, b = Placement.parse("S(0)"), Placement.parse("B")
    >>> step = find_step(t.shape, s, b, 0, mesh)
    >>> boxing_bytes_expr(t, (step,), mesh)
    d1*itemsize*(tp - 1)*ceiling(d0/tp)
    """
    total: sympy.Expr = sympy.Integer(0)
    for step in steps:
        own = step_wire_bytes(type, step, mesh)
        sent = step_sent_bytes(type, step, mesh, hardware) if hardware else own
        if _is_number(type, step, mesh):
            words = sympy.Rational(sent, type.dtype.itemsize)
            total += sympy.ceiling(_symbol("itemsize") * words)
        else:
            is_own = hardware is None or not _is_exchanged(step, own, mesh, hardware)
            total += _step_expr(type.ndim, step, mesh.names, is_own)
    return total


def _is_exchanged(step: Step, wire: int, mesh: Mesh, hardware: Hardware) -> bool:
    """Whether the step is a sum that ranks exchange all they have for."""
    kind = step.collective
    if kind is not CollectiveKind.ALL_REDUCE:
        return False
    return is_exchanged(kind, wire, mesh, step.axis, hardware)


def _is_number(type: TensorType, step: Step, mesh: Mesh) -> bool:
    """Whether the step's bytes follow from the figures alone."""
    if has_cut_chunks(step.before) or has_cut_chunks(step.after):
        return True
    return is_uneven_exchange(type.shape, step, mesh)


def evaluate(expr: sympy.Expr, type: TensorType, mesh: Mesh) -> int:
    """Return the value of ``expr`` for a type and a mesh."""
    values = _values(type, mesh)
    function = _lambdified(expr, tuple(values))
    return int(function(*values.values()))


@lru_cache(maxsize=1 << 14)
def _lambdified(expr: sympy.Expr, names: tuple[str, ...]) -> Callable[..., float]:
    """Compile ``expr`` once for all the sizes that it will be asked for."""
    symbols = [_symbol(name) for name in names]
    return sympy.lambdify(symbols, expr, modules="math", docstring_limit=0)


def _values(type: TensorType, mesh: Mesh) -> dict[str, int]:
    dims = {f"d{dim}": size for dim, size in enumerate(type.shape)}
    return {**dims, "itemsize": type.dtype.itemsize, **dict(mesh.axes)}


def _symbol(name: str) -> sympy.Symbol:
    return sympy.Symbol(name, integer=True, positive=True)


@lru_cache(maxsize=1 << 14)
def _step_expr(
    ndim: int, step: Step, names: tuple[str, ...], is_own: bool
) -> sympy.Expr:
    """Return the wire bytes of a step that puts in what ``payload_bytes_at`` counts."""
    size = _symbol(names[step.axis])
    before = [_extent(dim, step.before, names) for dim in range(ndim)]
    after = [_extent(dim, step.after, names) for dim in range(ndim)]
    match step.collective:
        case CollectiveKind.REDUCE_SCATTER:
            numel = size * prod(after)
        case _:
            numel = prod(before, start=sympy.Integer(1))
    return _wire_expr(step, numel, names, is_own)


def _wire_expr(
    step: Step, numel: sympy.Expr, names: tuple[str, ...], is_own: bool
) -> sympy.Expr:
    """Return ``collectives.wire_bytes``, with symbols.

    Those of a sum that is not the machine's own are what each sends to each other.
    """
    payload, size = _symbol("itemsize") * numel, _symbol(names[step.axis])
    match step.collective:
        case None:
            return sympy.Integer(0)
        case CollectiveKind.ALL_GATHER:
            return (size - 1) * payload
        case CollectiveKind.ALL_REDUCE if not is_own:
            return (size - 1) * payload
        case CollectiveKind.ALL_REDUCE:
            return sympy.ceiling(2 * (size - 1) * payload / size)
        case _:
            return sympy.ceiling((size - 1) * payload / size)


def _extent(dim: int, placement: Placement, names: tuple[str, ...]) -> sympy.Expr:
    """Return what the first rank holds of ``dim``: the first chunk of each piece."""
    pieces: list[sympy.Expr] = [_symbol(f"d{dim}")]
    for axis in placement.axes_splitting(dim):
        split = placement.shardings[axis]
        assert isinstance(split, Split)
        if split.segments and len(pieces) == 1:
            pieces = [sympy.Integer(size) for size in split.segments]
        size = _symbol(names[axis])
        pieces = [sympy.ceiling(piece / size) for piece in pieces]
    return sympy.Add(*pieces)


def dim_symbol(dim: int) -> sympy.Symbol:
    """Return the symbol of the size of a logical dim."""
    return _symbol(f"d{dim}")


def numel_expr(ndim: int, placement: Placement, names: tuple[str, ...]) -> sympy.Expr:
    """Return the elements that the first rank holds of a tensor."""
    return sympy.Mul(*(_extent(dim, placement, names) for dim in range(ndim)))
