"""Calls of ATen ops on real arguments, from torch's own database of ops."""

from __future__ import annotations

import warnings
from functools import cache

from partita.testing.harvest import Harvest, harvest


@cache
def harvested() -> Harvest:
    """Return the calls that the whole database makes, forward and backward."""
    with warnings.catch_warnings():
        # What torch says of its own deprecated ops, and of reading samples.
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db

        return harvest(op_db)
