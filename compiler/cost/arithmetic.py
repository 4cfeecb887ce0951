"""One arithmetic for two kinds of numbers, so that a cost is written down once.

A cost formula takes sizes and rates, which are numbers for the search and symbols for
the formulas that ``explain`` prints; what both spell differently is given to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sympy

Real = Any
"""A number, or a sympy expression for one."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What numbers and symbols spell differently.

    Attributes:
        up: of ``a`` and ``b``, ``a / b`` rounded up.
        log2_up: the logarithm to base 2, rounded up.
        least: the smallest of some.
        greatest: the greatest of some.
        first: of ``(value, bound)`` pairs and an argument, the value of the first
            pair whose bound the argument does not exceed; the last has no bound.
    """

    up: Callable[[Real, Real], Real]
    log2_up: Callable[[Real], Real]
    least: Callable[..., Real]
    greatest: Callable[..., Real]
    first: Callable[..., Real]


def _first(argument: Real, pairs: tuple[tuple[Real, Real], ...], last: Real) -> Real:
    for value, bound in pairs:
        if argument <= bound:
            return value
    return last


def _piecewise(
    argument: Real, pairs: tuple[tuple[Real, Real], ...], last: Real
) -> Real:
    cases = [(value, argument <= bound) for value, bound in pairs]
    return sympy.Piecewise(*cases, (last, True)) if pairs else last


def _unsorted(kind: Callable[..., Real], values: tuple[Real, ...]) -> Real:
    """Return a minimum or maximum as it stands: sorting it out may take minutes."""
    return values[0] if len(values) == 1 else kind(*values, evaluate=False)


NUMBERS = Arithmetic(
    up=lambda a, b: -(-a // b),
    log2_up=lambda n: (n - 1).bit_length(),
    least=lambda *values: min(values),
    greatest=lambda *values: max(values),
    first=_first,
)

SYMBOLS = Arithmetic(
    up=lambda a, b: sympy.ceiling(a / b),
    log2_up=lambda n: sympy.ceiling(sympy.log(n, 2)),
    least=lambda *values: _unsorted(sympy.Min, values),
    greatest=lambda *values: _unsorted(sympy.Max, values),
    first=_piecewise,
)
