"""What is wanted of a search: how little it must find to be of use, and how soon."""

from __future__ import annotations

from math import inf
from typing import NamedTuple


class Wanted(NamedTuple):
    """What takes less than ``below_s``, in seconds; of what takes more nothing is made.

    A rough one may take more than the best does, and is found sooner.

    >>> ROUGH.less_than(2.0)
    Wanted(below_s=2.0, is_rough=True)
    """

    below_s: float = inf
    is_rough: bool = False

    def less_than(self, below_s: float) -> Wanted:
        """Return the same of what takes less than these seconds."""
        return self._replace(below_s=below_s)


ANY = Wanted()
"""Anything will do, if nothing is better."""

ROUGH = Wanted(is_rough=True)
"""Anything will do."""
