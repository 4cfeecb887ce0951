"""What an optimizer holds, and what its step allocates and touches.

Torch 2.13 (torch/optim/adam.py, sgd.py): unless told otherwise ``Adam`` and ``AdamW``
update one parameter after another on the CPU, where the denominator takes two tensors
of its size (the root, and the root divided) while that of the parameter before it still
exists; on a GPU all of a dtype at once (``foreach``), where the roots of all second
moments exist together and are worked on in place. ``SGD`` works in place in both, with
momentum too, which is ``momentum-sgd`` here. ``fused-adamw`` is ``AdamW(...,
fused=True)``, which allocates nothing.

``mixed-adamw`` is what large models in 16 bits are trained with: AdamW on copies of
them in f32, in one fused kernel. Its moments are f32, too, and so is the sum of the
gradients, which is held whole where they are made, also where the rest is split
(Rajbhandari et al., "ZeRO", arXiv:1910.02054, section 3.1: 12 bytes a parameter for
the copy and the moments; Megatron-LM, docs/source/api-guide/dist_optimizer, with sums
in f32: 6 + 12/d bytes; apex.optimizers.FusedAdam). Parameters in f32 or more it treats
as AdamW does.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

MIXED = "mixed-adamw"
FUSED = "fused-adamw"
MOMENTUM = "momentum-sgd"

_MOMENTS = {"sgd": 0, MOMENTUM: 1, "adam": 2, "adamw": 2, FUSED: 2, MIXED: 2}
_PASSES = {"sgd": 3, MOMENTUM: 5, "adam": 7, "adamw": 7, FUSED: 7, MIXED: 7}
_LINES = (3, 2, 3, 2, 2, 2, 4)  # lerp_, mul_, addcmul_, sqrt, div, add_, addcdiv_
_KERNELS = {
    "sgd": (3,),
    MOMENTUM: (2, 3, 3),  # mul_, add_ to the momentum, add_ to the parameter
    "adam": _LINES,
    "adamw": (2, *_LINES),
}
_ONE_KERNEL = FUSED, MIXED
_IN_PLACE = "sgd", MOMENTUM, FUSED, MIXED
_F32 = 4

IN_ONE_KERNEL = {"adamw": FUSED}
"""What does the same in one kernel, by what is made with torch's defaults."""

OPTIMIZERS = tuple(sorted(_MOMENTS))
"""The names of the optimizers that are known here."""


def moments_of(optimizer: str) -> int:
    """Return how many tensors of a parameter's size an optimizer keeps."""
    return _MOMENTS[optimizer]


def state_sizes(optimizer: str, num_bytes: int, itemsize: int) -> tuple[int, ...]:
    """Return the bytes of each tensor that an optimizer keeps of a shard it updates.

    >>> state_sizes("adamw", 200, 2), state_sizes("mixed-adamw", 200, 2)
    ((200, 200), (400, 400, 400))
    """
    if is_mixed(optimizer, itemsize):
        return (num_bytes * _F32 // itemsize,) * (1 + moments_of(optimizer))
    return (num_bytes,) * moments_of(optimizer)


def sum_bytes(optimizer: str, num_bytes: int, itemsize: int) -> int:
    """Return what it keeps of the gradient of a shard that is stored.

    >>> sum_bytes("adamw", 200, 2), sum_bytes("mixed-adamw", 200, 2)
    (0, 400)
    """
    is_copied = is_mixed(optimizer, itemsize)
    return num_bytes * _F32 // itemsize if is_copied else 0


def state_bytes(optimizer: str, stored: int, updated: int | None, itemsize: int) -> int:
    """Return what a rank holds all the time of a parameter that is trained.

    Args:
        optimizer: one of ``OPTIMIZERS``.
        stored: bytes of it as it is stored.
        updated: those of the piece that the optimizer has, a copy besides; ``None``
            where it has what is stored.
        itemsize: bytes of a number.

    >>> state_bytes("adamw", 800, None, 4), state_bytes("adamw", 800, 200, 4)
    (2400, 1400)
    """
    copy, piece = (0, stored) if updated is None else (updated, updated)
    kept = sum(state_sizes(optimizer, piece, itemsize))
    return stored + copy + kept + sum_bytes(optimizer, stored, itemsize)


def touched_bytes(
    optimizer: str, num_bytes: int, itemsize: int, device: str
) -> tuple[int, ...]:
    """Return what each kernel of the update of a shard reads and writes.

    On a GPU there is one: parameter, gradient and moments are read, parameter and
    moments written. Of 16 bits the gradient is added to the sum before, and what is new
    written to the parameter. On a CPU every line of torch's is a kernel.

    >>> touched_bytes("adamw", 200, 2, "cuda"), touched_bytes("sgd", 200, 2, "cpu")
    ((1400,), (600,))
    """
    if is_mixed(optimizer, itemsize):
        in_f32 = num_bytes * _F32 // itemsize
        added, written = num_bytes + 2 * in_f32, num_bytes
        return (_PASSES[optimizer] * in_f32 + added + written,)
    if device == "cpu" and optimizer not in _ONE_KERNEL:
        return tuple(passes * num_bytes for passes in _KERNELS[optimizer])
    return (_PASSES[optimizer] * num_bytes,)


def is_mixed(optimizer: str, itemsize: int) -> bool:
    """Whether an optimizer works on copies in f32."""
    return optimizer == MIXED and itemsize < _F32


def update_bytes(optimizer: str, sizes: Sequence[int], device: str) -> int:
    """Return the most that a step allocates at once.

    Args:
        optimizer: one of ``OPTIMIZERS``; torch's are made with their defaults.
        sizes: the bytes of each parameter that it updates, in their order.
        device: ``cpu`` or ``cuda``.

    >>> update_bytes("adamw", (8, 100), "cpu"), update_bytes("adamw", (8, 100), "cuda")
    (208, 108)
    """
    if optimizer in _IN_PLACE:
        return 0
    if device != "cpu":
        return sum(sizes)
    return max((a + 2 * b for a, b in pairwise((0, *sizes))), default=0)
