"""Seconds as sympy expressions: what ``explain`` prints and scaling curves evaluate.

The expressions come from the very functions that price for the search, called with
symbols in place of numbers: mesh axes by their names, the figures of the hardware by
theirs. A formula holds for the sizes that pass the same levels of the network as those
it was made for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import sympy
import torch

from partita.compiler.cost.arithmetic import SYMBOLS, Real
from partita.compiler.cost.collectives import (
    CollectiveKind,
    exchange_seconds,
    may_be_exchanged,
    seconds,
)
from partita.compiler.cost.compute import short_name
from partita.compiler.hardware.device import Device
from partita.compiler.hardware.links import CollectiveCost, Leg
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.mesh import Mesh


@dataclass(frozen=True)
class Formula:
    """An expression and what its symbols stand for where it was made."""

    expr: sympy.Expr
    values: Mapping[str, float]

    def __str__(self) -> str:
        return str(self.expr)

    def evaluate_at(self, changed: Mapping[str, float]) -> float:
        """Return its value, some symbols having other values than where it was made.

        Raises:
            KeyError: for a symbol that it has not, or that has no value.
        """
        names, function = _lambdified(self.expr)
        for name in changed:
            if name not in self.values and name not in names:
                known = ", ".join(sorted({*names, *self.values}))
                raise KeyError(f"no symbol {name} in the formula; it has {known}")
        values = {**self.values, **changed}
        return float(function(*(values[name] for name in names)))

    def settled(self) -> Formula:
        """Return it as it is near the sizes that it was made for.

        Of the kernels and algorithms among which the fastest counts only that is left,
        of the caches the one that is large enough; both are others elsewhere.
        """
        return replace(self, expr=self._settle(self.expr))

    def _settle(self, expr: Any) -> Any:
        if isinstance(expr, sympy.Piecewise):
            cases: Any = expr.args  # pairs of a value and when it counts
            holds = (value for value, when in cases if when.subs(self.values))
            return self._settle(next(holds))
        if not expr.args:
            return expr
        args = [self._settle(arg) for arg in expr.args]
        if isinstance(expr, sympy.Min):
            return min(args, key=lambda arg: Formula(arg, self.values).evaluate_at({}))
        if isinstance(expr, sympy.Max):
            return expr.func(*args, evaluate=False)
        return expr.func(*args)


@lru_cache(maxsize=1 << 14)
def _lambdified(expr: sympy.Expr) -> tuple[tuple[str, ...], Callable[..., float]]:
    """Compile ``expr`` once for all the sizes that it will be asked for."""
    symbols = sorted(expr.free_symbols, key=str)
    names = tuple(str(symbol) for symbol in symbols)
    # Its docstring would hold the printed expression, which takes as long as the rest.
    function = sympy.lambdify(symbols, expr, modules="math", docstring_limit=0)
    return names, function


def size_symbol(name: str) -> sympy.Symbol:
    """Return the symbol of a size: a positive whole number."""
    return sympy.Symbol(name, integer=True, positive=True)


def rate_symbol(name: str) -> sympy.Symbol:
    """Return the symbol of a figure of the hardware: a number, never negative."""
    return sympy.Symbol(name, nonnegative=True)


def device_symbols(
    device: Device, dtype: torch.dtype
) -> tuple[Device, dict[str, float]]:
    """Return the device with symbols for its figures, and their values.

    What depends on sizes, the tiles of matmuls and the caches, stays numbers.
    """
    short = short_name(dtype)
    values = {
        "flops_per_s": device.flops_per_s.get(short, device.flops_per_s["f32"]),
        "memory_bytes_per_s": device.memory_bytes_per_s,
        "launch_s": device.launch_s,
    }
    if device.matmul.units > 1:
        values["units"] = float(device.matmul.units)
    known: dict[str, Any] = {name: rate_symbol(name) for name in values}
    rates = {"f32": known["flops_per_s"], short: known["flops_per_s"]}
    symbolic = replace(
        device,
        flops_per_s=rates,
        memory_bytes_per_s=known["memory_bytes_per_s"],
        launch_s=known["launch_s"],
        matmul=replace(device.matmul, units=known.get("units", 1)),
    )
    return symbolic, values


def collective_formula(
    kind: CollectiveKind, num_bytes: Real, mesh: Mesh, axis: int, hardware: Hardware
) -> Formula:
    """Return the seconds of a collective on the groups of ``axis``.

    Args:
        kind: the collective.
        num_bytes: what a rank sends, an expression or a number; its symbols, but for
            the mesh's axes, are to be given to ``evaluate_at``.
        mesh: its sizes say which levels of the network a group passes.
        axis: the axis.
        hardware: the figures.

    >>> from partita.compiler.hardware.profile import load_hardware
    >>> gloo, mesh = load_hardware("cpu-gloo"), Mesh(tp=2)
    >>> bytes_ = size_symbol("bytes")
    >>> formula = collective_formula(
    ...     CollectiveKind.ALL_TO_ALL, bytes_, mesh, 0, gloo
    ... )
    >>> print(formula)
    bytes/loopback_bytes_per_s + loopback_alpha_s*(tp - 1) + loopback_base_s
    """
    size = size_symbol(mesh.names[axis])
    sent = sympy.sympify(num_bytes)
    values: dict[str, float] = {name: float(n) for name, n in mesh.axes}
    may_exchange = may_be_exchanged(kind, hardware.device)
    kinds = (kind, *(_EXCHANGES if may_exchange else ()))
    legs: list[Leg] = []
    numeric = hardware.legs(mesh, axis)
    for number, leg in enumerate(numeric):
        costs: dict[CollectiveKind, CollectiveCost] = {}
        for each in kinds:
            costs[each], found = _cost_symbols(leg, each, "" if each is kind else each)
            values |= found
        is_top = number == len(numeric) - 1
        wide: Any = SYMBOLS.up(size, leg.members) if is_top else leg.size
        legs.append(replace(leg, link=replace(leg.link, costs=costs), size=wide))
    expr = seconds(kind, sent, size, tuple(legs), SYMBOLS)
    if may_exchange:
        device, rates = device_symbols(hardware.device, torch.float32)
        values |= rates
        exchanged = exchange_seconds(kind, sent, size, tuple(legs), device, SYMBOLS)
        expr = SYMBOLS.least(expr, exchanged)
    return Formula(sympy.sympify(expr), values)


_EXCHANGES = (CollectiveKind.ALL_TO_ALL, CollectiveKind.ALL_REDUCE)
"""Whose figures say what a collective takes as an exchange."""


def _cost_symbols(
    leg: Leg, kind: CollectiveKind, name: str
) -> tuple[CollectiveCost, dict[str, float]]:
    """Return the costs of a level with symbols for its figures, and their values.

    The symbols have ``name`` in theirs, where there is one.
    """
    values: dict[str, float] = {}

    def named(name: str, value: float) -> Any:
        values[name] = value
        return rate_symbol(name)

    first = leg.link.costs[kind]
    symbolic: list[CollectiveCost] = []
    for number, cost in enumerate((first, *first.others)):
        parts = (leg.link.name, name, str(number) if number else "")
        stem = "_".join(part for part in parts if part)
        symbolic.append(
            CollectiveCost(
                alpha_s=named(f"{stem}_alpha_s", cost.alpha_s),
                bytes_per_s=named(f"{stem}_bytes_per_s", cost.rate(leg.size)),
                base_s=named(f"{stem}_base_s", cost.base_s),
                algorithm=cost.algorithm,
            )
        )
    return replace(symbolic[0], others=tuple(symbolic[1:])), values
