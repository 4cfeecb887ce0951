"""How a program that computes a part of the batch covers all of it, part by part.

The microbatches of a step are the ranks of a mesh axis that lies in time: each stands
at a coordinate of it, one after another. Of a tensor that is ``S(dim)`` in time every
microbatch makes its part, of one that is ``B`` the same; those of ``P(sum)`` add up.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from partita.compiler.ir.sbp import Sharding

AXIS = "micro"
"""The name of the axis."""


@dataclass(frozen=True, slots=True)
class InTime:
    """The number of microbatches, and how each output of theirs comes together.

    ``joins`` has one sharding per output of the program; none where the batch is one.

    >>> InTime().count
    1
    """

    count: int = 1
    joins: tuple[Sharding, ...] = ()


WHOLE = InTime()
"""The batch in one piece."""


def is_zeros(node: fx.Node) -> bool:
    """Whether a node makes zeros, which every microbatch may add to a sum."""
    return node.target is torch.ops.aten.full.default and node.args[1] in (0,)
