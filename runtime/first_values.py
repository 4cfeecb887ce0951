"""Whether ranks begin with the same values: each holds parts of them, or copies.

Where they do not, a program would train a mixture of models, and what every rank has a
copy of would differ for good.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from partita.compiler.errors import BadOptions
from partita.runtime.agree import everyone_tells

_WORD = 8  # bytes, of what is added up
_SHORT = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""What elements are read as that do not fill words, by their size in bytes."""
_ROW = 1 << 17  # words that are weighed at once


def sum_of_bits(full: torch.Tensor) -> torch.Tensor:
    """Return a sum of what ``full`` holds, read as integers, modulo 2^64: 0-d.

    Each counts by its place, so that other values, or the same in another order, have
    the same sum in all likelihood never.
    """
    held = full.resolve_conj().resolve_neg().contiguous().reshape(-1)
    if held.nbytes % _WORD:
        held = held.view(_SHORT[held.element_size()])
    elif held.storage_offset() * held.element_size() % _WORD:
        held = held.clone().view(torch.int64)  # words begin where their size divides
    else:
        held = held.view(torch.int64)
    weights = torch.arange(1, 2 * min(_ROW, len(held)) + 1, 2, device=held.device)
    total = torch.zeros((), dtype=torch.int64, device=held.device)
    for row in held.split(_ROW):
        total = 3 * total + (row * weights[: len(row)]).sum()
    return total


def check_alike(sums: Mapping[str, torch.Tensor]) -> None:
    """Check that all ranks made the same values; each calls it.

    Args:
        sums: of the bits of what is compared, by name.

    Raises:
        BadOptions: on every rank, naming the first that differs.
    """
    own = {name: int(found) for name, found in sums.items()}
    first: dict[str, tuple[int, int]] = {}
    for rank, told in enumerate(everyone_tells(own)):
        for name, found in told.items():
            other, wanted = first.setdefault(name, (rank, found))
            if found != wanted:
                raise BadOptions(
                    f"init: rank {rank} begins with other values of {name!r} than rank "
                    f"{other}; want the same on all: call torch.manual_seed before the "
                    "model is made, or give init a seed or a state dict"
                )
