"""Which factors of an op are the sizes of a matmul.

An op that multiplies pairs of elements and adds up is a matmul of some batch. What a
factor is follows from where it stands: in a result or not, in the one operand that is
multiplied, in the other, or in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from partita.compiler.cost.compute import Product
from partita.compiler.rules.factors import Factors, Part
from partita.compiler.rules.rule import Rule


def product_of(rule: Rule, factors: Factors, ways: Mapping[str, int]) -> Product | None:
    """Return the matmul that one rank's share of a call is; ``None`` if it is none.

    Args:
        rule: the row, whose ``flops`` name the factors that count.
        factors: of the call, with their sizes.
        ways: how many ways each is split; the largest part counts.
    """
    words = rule.flops.split()
    names = [word for word in words if not word.isdecimal()]
    first = next((parts for parts in factors.results if parts is not None), ())
    kept = _names(first)
    summed = {name for name in names if name not in kept}
    multiplied = [held for held in map(_names, factors.operands) if held & summed]
    if len(multiplied) < 2:
        return None
    left, right = multiplied[:2]
    sizes = {name: -(-factors.all_sizes[name] // ways.get(name, 1)) for name in names}

    def size(wanted: Iterable[str]) -> int:
        return prod(sizes[name] for name in wanted)

    outer = [name for name in names if name in kept]
    # A window slides over what the left operand alone is summed over: rows, too.
    slid = summed & (left - right)
    rows = [*(name for name in outer if name not in right), *slid]
    columns = [name for name in outer if name in right and name not in left]
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
