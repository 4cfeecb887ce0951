"""Whole numbers that a model keeps as buffers, and no state dict holds, are known.

A layer that keeps its stride so, as codecs of sounds do, computes by it how far to pad:
sizes that depend on a value. No checkpoint makes that value another one, and where a
trace fails otherwise it is put in the buffer's place.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from partita.compiler.capture.torch_private import tables_of
from partita.compiler.errors import CaptureFailed


def kept_numbers(model: torch.nn.Module) -> dict[str, int]:
    """Return the numbers that the buffers of a model hold, by name."""
    found = {
        name: buffer
        for name, buffer in model.named_buffers()
        if not buffer.ndim and not buffer.is_meta and _is_whole(buffer)
    }
    stored = model.state_dict(keep_vars=True) if found else {}
    return {name: int(found[name]) for name in found if name not in stored}


def _is_whole(buffer: Tensor) -> bool:
    return not (buffer.is_floating_point() or buffer.is_complex())


@contextmanager
def known_numbers(
    model: torch.nn.Module, numbers: Mapping[str, int]
) -> Generator[None]:
    """Within it buffers of ``model`` are the numbers that they hold.

    Raises:
        CaptureFailed: when the model writes to one of them.
    """
    placed: list[tuple[dict[str, Tensor], str, Tensor, Tensor]] = []
    for path, number in numbers.items():
        owner, _, name = path.rpartition(".")
        _, table = tables_of(model.get_submodule(owner))
        known = torch.tensor(number, dtype=table[name].dtype)
        placed.append((table, name, table[name], known))
        table[name] = known
    versions = [known._version for *_, known in placed]
    try:
        yield
        for (table, name, _, known), version in zip(placed, versions, strict=True):
            if table[name] is not known or known._version != version:
                raise CaptureFailed(
                    f"the model writes to its buffer {name!r}, which its sizes go by"
                )
    finally:
        for table, name, buffer, _ in placed:
            table[name] = buffer
