"""The seconds of one rank's share of an op, as an expression in its factors."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import cast

import sympy

from partita.compiler.cost.arithmetic import SYMBOLS, Real
from partita.compiler.cost.compute import op_seconds
from partita.compiler.cost.formulas import Formula, device_symbols, size_symbol
from partita.compiler.cost.products import product_of
from partita.compiler.cost.symbolic import dim_symbol, numel_expr
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement, Split
from partita.compiler.ir.signature import Signature
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.rules.factors import Factors, Part
from partita.compiler.rules.rule import Call
from partita.compiler.rules.signatures import ways_in

_Placed = tuple[TensorType | None, tuple[Part, ...] | None, Placement | None]


def op_formula(
    call: Call,
    factors: Factors,
    signature: Signature,
    mesh: Mesh,
    hardware: Hardware,
) -> Formula:
    """Return the formula of a call under a signature: what ``Candidates`` prices.

    Its symbols are the factors of the row (``d0`` for ``*0``; ``k_`` where an axis is
    called ``k``), the axes of the mesh, and the device's figures. Dims that are
    concatenations are numbers.
    """
    names = {factor: factor_name(factor, mesh) for factor in factors.all_sizes}
    sizes = {factor: size_symbol(name) for factor, name in names.items()}
    local: dict[str, Real] = dict(sizes)
    for factor, axes in _axes_of_factors(factors, signature, mesh).items():
        local[factor] = SYMBOLS.up(sizes[factor], sympy.Mul(*map(size_symbol, axes)))
    tensors: list[_Placed] = [
        *zip(call.operands, factors.operands, signature.operands, strict=True),
        *zip(call.results, factors.results, signature.results, strict=True),
    ]
    dtype = next(t.dtype for t in (*call.results, *call.operands) if t is not None)
    device, values = device_symbols(hardware.device, dtype)
    num_bytes = sympy.Add(*(_bytes(placed, sizes, mesh) for placed in tensors))
    words = [int(w) if w.isdecimal() else local[w] for w in factors.flops.split()]
    expr = op_seconds(
        sympy.Mul(*words) if words else sympy.Integer(0),
        num_bytes,
        dtype,
        device,
        call.op,
        product_of(factors, local),
        SYMBOLS,
    )
    values |= {names[f]: float(size) for f, size in factors.all_sizes.items()}
    values |= {name: float(size) for name, size in mesh.axes}
    return Formula(sympy.sympify(expr), values)


def factor_name(factor: str, mesh: Mesh) -> str:
    """Return the symbol of a factor: none that an axis of ``mesh`` has."""
    name = factor.replace("*", "d")
    return f"{name}_" if name in mesh.names else name


def _axes_of_factors(
    factors: Factors, signature: Signature, mesh: Mesh
) -> dict[str, list[str]]:
    """Return the names of the axes that split each factor."""
    found: dict[str, list[str]] = {}
    for axis, name in enumerate(mesh.names):
        alone = Mesh(**{n: 2 if n == name else 1 for n in mesh.names})
        if mesh.sizes[axis] > 1:
            for factor, ways in ways_in(factors, signature, alone).items():
                if ways > 1:
                    found.setdefault(factor, []).append(name)
    return found


def _bytes(
    placed: _Placed, sizes: Mapping[str, sympy.Symbol], mesh: Mesh
) -> sympy.Expr:
    """Return the bytes that the first rank has of a tensor."""
    type_, parts, placement = placed
    if type_ is None or placement is None:
        return sympy.Integer(0)
    expr = numel_expr(type_.ndim, placement, mesh.names)
    whole: dict[sympy.Symbol, Real] = {}
    for dim, size in enumerate(type_.shape):
        own = [part for part in parts or () if part.dim == dim]
        is_product = prod(part.size for part in own) == size
        product: sympy.Expr = sympy.Integer(size)
        if own and is_product and not any(part.pieces for part in own):
            product = sympy.Mul(*(sizes[part.factor] for part in own))
        whole[dim_symbol(dim)] = product
        splits = [placement.shardings[axis] for axis in placement.axes_splitting(dim)]
        if size and any(isinstance(s, Split) and s.segments for s in splits):
            expr *= product / size  # segments are numbers, which grow with their dim
    return type_.dtype.itemsize * cast("sympy.Expr", expr.xreplace(whole))
