"""The smallest set of demands that cannot be met together.

QuickXplain: Junker, "QuickXplain: Preferred Explanations and Relaxations for
Over-Constrained Problems", AAAI 2004. Of ``n`` demands of which ``k`` conflict it asks
about ``2 k log(n / k) + 2 k`` sets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def smallest_conflict(
    demands: Sequence[T], is_refused: Callable[[Sequence[T]], bool]
) -> list[T]:
    """Return demands that conflict, of which none could be left out, in their order.

    There may be other such sets; earlier demands are preferred.

    Args:
        demands: together refused.
        is_refused: whether some of them, in any order, cannot be met together; what
            contains a refused set is refused.

    >>> smallest_conflict("abcd", lambda some: {"b", "d"} <= set(some))
    ['b', 'd']
    """
    nothing: Sequence[T] = ()
    if is_refused(nothing):
        return []
    return _conflict(nothing, False, demands, is_refused)


def _conflict(
    known: Sequence[T],
    has_grown: bool,
    demands: Sequence[T],
    is_refused: Callable[[Sequence[T]], bool],
) -> list[T]:
    """Return which of the demands conflict beside those that are known to count."""
    if has_grown and is_refused(known):
        return []
    if len(demands) == 1:
        return list(demands)
    half = len(demands) // 2
    first, second = demands[:half], demands[half:]
    later = _conflict((*known, *first), True, second, is_refused)
    sooner = _conflict((*known, *later), bool(later), first, is_refused)
    return [*sooner, *later]
