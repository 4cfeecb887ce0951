"""Sequences that are packed are refused as what they are: of shapes that go by values.

Traced, they fail where a layer reads the number of sequences off what was packed.
"""

from __future__ import annotations

from typing import Any

from torch.overrides import TorchFunctionMode

_PACKED = (
    "a packed sequence has a shape that depends on the lengths; give the layer the "
    "padded batch, and take torch.where by the lengths for what it makes behind the "
    "ends, gather at lengths - 1 for its last states"
)


class RefusedPacking(TorchFunctionMode):
    """Within it packing sequences raises what is to be written instead."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run ``func``.

        Raises:
            NotImplementedError: where it packs.
        """
        if getattr(func, "__name__", "") == "_pack_padded_sequence":
            raise NotImplementedError(_PACKED)
        return func(*args, **(kwargs or {}))
