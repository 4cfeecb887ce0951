"""What is put in place of a tensor's data is written into it, so that a trace sees it.

``p.data = value`` gives ``p`` other memory, which leaves no call in a graph: whatever
comes after would see the value, and the step would not keep it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from partita.compiler.errors import CaptureFailed

_DATA: Any = torch.Tensor.data  # what of the class gets and sets it


class WrittenData(TorchFunctionMode):
    """Within it setting the ``data`` of a tensor writes the values to it."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run ``func``.

        Raises:
            CaptureFailed: when a tensor that stays would change its shape or dtype.
        """
        if func != _DATA.__set__:
            return func(*args, **(kwargs or {}))
        tensor, value = args
        if value.shape == tensor.shape and value.dtype == tensor.dtype:
            tensor.detach().copy_(value.detach())
        elif tensor.is_leaf:
            raise CaptureFailed(
                f".data of a tensor becomes {value.dtype} of shape "
                f"{list(value.shape)}, it was {tensor.dtype} of shape "
                f"{list(tensor.shape)}; a step may change only its values"
            )
        else:
            func(*args)
        return None
