"""What an optimizer holds, and what its step allocates.

Torch 2.13 (torch/optim/adam.py, sgd.py): unless told otherwise ``Adam`` and ``AdamW``
update one parameter after another on the CPU, where the denominator takes two tensors
of its size (the root, and the root divided) while that of the parameter before it still
exists; on a GPU all of a dtype at once (``foreach``), where the roots of all second
moments exist together and are worked on in place. ``SGD`` without momentum adds in
place in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

_MOMENTS = {"sgd": 0, "adam": 2, "adamw": 2}


def moments_of(optimizer: str) -> int:
    """Return how many tensors of a parameter's size an optimizer keeps."""
    return _MOMENTS[optimizer]


def update_bytes(optimizer: str, sizes: Sequence[int], device: str) -> int:
    """Return the most that a step allocates at once.

    Args:
        optimizer: ``sgd``, ``adam`` or ``adamw``, made with torch's defaults.
        sizes: the bytes of each parameter that it updates, in their order.
        device: ``cpu`` or ``cuda``.

    >>> update_bytes("adamw", (8, 100), "cpu"), update_bytes("adamw", (8, 100), "cuda")
    (208, 108)
    """
    if not moments_of(optimizer):
        return 0
    if device != "cpu":
        return sum(sizes)
    return max((a + 2 * b for a, b in pairwise((0, *sizes))), default=0)
