"""Sequences that are packed are refused as what they are: of shapes that go by values.

Traced, they fail where a layer reads the number of sequences off what was packed.
"""

from __future__ import annotations

from typing import NoReturn


def refuse_packing(*args: object, **kwargs: object) -> NoReturn:
    """Say what is to be written in place of packing.

    Raises:
        NotImplementedError: always; a capture names the line that packs with it.
    """
    raise NotImplementedError(
        "a packed sequence has a shape that depends on the lengths; give the layer the "
        "padded batch, and take torch.where by the lengths for what it makes behind "
        "the ends, gather at lengths - 1 for its last states"
    )
