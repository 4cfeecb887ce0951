"""The one op that changes a placement: ``box(x, source, target)``.

It stands in the graph from insert-collectives until the lowering, so that what is
above asks only for placements and what is below moves only bytes (DESIGN,
decision 6). Both placements are printed text, which parses back.
"""

from __future__ import annotations

import torch
from torch import fx


def box(x: torch.Tensor, source: str, target: str) -> torch.Tensor:
    """Give ``x``, placed as ``source``, placed as ``target``; never runs itself."""
    raise AssertionError(f"box({source} -> {target}) must be lowered before it runs")


def is_box(node: fx.Node) -> bool:
    """Whether ``node`` is a boxing."""
    return node.target is box


def is_of_boxing(key: str) -> bool:
    """Whether a key is that of a boxing, or of a part of what one was lowered to.

    >>> is_of_boxing("mm/0#0 -> (B,)"), is_of_boxing("mm/0")
    (True, False)
    """
    return " -> " in key
