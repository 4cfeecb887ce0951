"""Which factors of an op are the sizes of a matmul.

An op that multiplies pairs of elements and adds up is a matmul of some batch. What a
factor is follows from where it stands: in a result or not, in the one operand that is
multiplied, in the other, or in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from partita.compiler.cost.arithmetic import Real
from partita.compiler.cost.compute import Product
from partita.compiler.rules.factors import Factors, Part


def local_sizes(factors: Factors, ways: Mapping[str, int]) -> dict[str, int]:
    """Return what the largest rank has of each factor.

    Args:
        factors: of the call, with their sizes.
        ways: how many ways each is split, once if it is left out.
    """
    return {
        factor: -(-size // ways.get(factor, 1))
        for factor, size in factors.all_sizes.items()
    }


def product_of(factors: Factors, sizes: Mapping[str, Real]) -> Product | None:
    """Return the matmul that one rank's share of a call is; ``None`` if it is none.

    Args:
        factors: of the call; its flops name those that count.
        sizes: what the rank has of each factor.
    """
    words = factors.flops.split()
    names = [word for word in words if not word.isdecimal()]
    first = next((parts for parts in factors.results if parts is not None), ())
    kept = _names(first)
    summed = {name for name in names if name not in kept}
    multiplied = [held for held in map(_names, factors.operands) if held & summed]
    if len(multiplied) < 2:
        return None
    left, right = multiplied[:2]

    def size(wanted: Iterable[str]) -> Real:
        return prod(sizes[name] for name in wanted)

    outer = [name for name in names if name in kept]
    # Where in its window an element lies: both operands are read there.
    offsets = [name for name in outer if name not in left | right]
    # A window slides over what the left operand alone is summed over: rows, too, unless
    # the result is itself the window.
    slid = set[str]() if offsets else summed & (left - right)
    rows = [*(name for name in outer if name in left - right), *slid]
    columns = [*(name for name in outer if name in right - left), *offsets]
    if not rows or not columns:
        return None
    return Product(
        m=size(rows),
        n=size(columns),
        k=size(summed - slid),
        batch=size(name for name in outer if name in right and name in left),
        count=prod(int(word) for word in words if word.isdecimal()) / 2,
    )


def _names(parts: tuple[Part, ...]) -> set[str]:
    return {part.factor for part in parts}
