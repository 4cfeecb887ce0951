"""Functions that are called in place of torch's own, wherever a model calls those."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.overrides import TorchFunctionMode


class InPlaceOf(TorchFunctionMode):
    """Within it each of ``others`` is called where its key is; torch's own calls stay.

    One of them that calls its key gets torch's.
    """

    def __init__(self, others: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__()
        self._others = others

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run ``func``, or what stands in its place."""
        return self._others.get(func, func)(*args, **(kwargs or {}))
