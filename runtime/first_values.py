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


def sum_of_bits(full: torch.Tensor) -> torch.Tensor:
    """Return the sum of what ``full`` holds, read as integers, modulo 2^64: 0-d.

    Two draws have the same one in all likelihood never.
    """
    held = full.resolve_conj().resolve_neg().reshape(-1)
    if held.nbytes % _WORD:
        return held.view(_SHORT[held.element_size()]).sum(dtype=torch.int64)
    if held.storage_offset() * held.element_size() % _WORD:
        held = held.clone()  # words begin where their size divides
    return held.view(torch.int64).sum()


def check_alike(sums: Mapping[str, torch.Tensor]) -> None:
    """Check that all ranks made the same values; each calls it.

    Args:
        sums: of the bits of what this rank has a part of, by name.

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
