"""Parameters and buffers that share memory without being one tensor.

A program has a tensor of its own for each: what is written to one, by the optimizer or
by the model, would not be seen in the other. Parts of one storage that do not overlap
are welcome.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from partita.compiler.errors import CaptureFailed


def check_apart(model: nn.Module, written: Set[str]) -> None:
    """Check that the tensors called ``written`` share memory with no other.

    Raises:
        CaptureFailed: naming two that do.
    """
    for one, other in _overlapping(model):
        if one in written or other in written:
            raise CaptureFailed(
                f"{one!r} and {other!r} share memory without being one tensor, and a "
                "program would change them apart; keep one of them, and transpose or "
                "slice it in forward"
            )


def _overlapping(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield the names of two tensors that share elements, sorted by where they lie."""
    held: dict[StorageWeakRef, list[tuple[int, int, str, Tensor]]] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta or not tensor.numel():
            continue
        storage = StorageWeakRef(tensor.untyped_storage())
        held.setdefault(storage, []).append((*_range(tensor), name, tensor))
    for tensors in held.values():
        tensors.sort(key=lambda found: found[:2])
        for at, (_, end, one, first) in enumerate(tensors):
            for begin, _, other, second in tensors[at + 1 :]:
                if begin >= end:
                    break
                if first is not second and _share_elements(first, second):
                    yield one, other


def _range(tensor: Tensor) -> tuple[int, int]:
    """Return the bytes of its storage that a tensor begins at and ends before."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    span = sum((size - 1) * int(stride) for size, stride in steps) + 1
    begin, size = int(tensor.storage_offset()), tensor.element_size()
    return begin * size, (begin + span) * size


def _share_elements(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one storage share an element: columns may lie between."""
    if one.element_size() != other.element_size():
        return True
    num = max(_range(one)[1], _range(other)[1]) // one.element_size()
    taken = torch.zeros(num, dtype=torch.bool)
    _of(taken, one).fill_(True)
    return bool(_of(taken, other).any())


def _of(taken: Tensor, like: Tensor) -> Tensor:
    return taken.as_strided(like.shape, like.stride(), like.storage_offset())
