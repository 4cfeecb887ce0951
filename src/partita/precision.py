"""What ``verify`` needs to run a model in another precision than its own."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.program import has_info, info

OWN_TOLERANCE = 1e-5


@contextmanager
def double_precision() -> Generator[None, None, None]:
    """Within it floats that ops make without being told a dtype are doubles."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(default)


def own_tolerance(local: LocalProgram) -> float:
    """Return what any tensor may be off by in the model's own precision.

    Below float32 it is four roundings of the coarsest dtype in the program: a sum that
    is split over ranks is rounded once more than the original's.
    """
    nodes = [node for node in local.graph_module.graph.nodes if has_info(node)]
    types = [type_ for node in nodes for type_ in info(node).types if type_]
    dtypes = {t.dtype for t in types if t.dtype.is_floating_point}
    coarse = [d for d in dtypes if d.itemsize < torch.float32.itemsize]
    return max(OWN_TOLERANCE, *(4 * torch.finfo(dtype).eps for dtype in coarse), 0.0)


class SingleEpsilons(TorchFunctionMode):
    """Within it an RMS norm without an ``eps`` takes float32's, as in the capture."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run ``func``, with an epsilon where it is a norm that is given none."""
        kwargs = dict(kwargs or {})
        if func in (torch.rms_norm, torch.nn.functional.rms_norm):
            eps = args[3] if len(args) > 3 else kwargs.get("eps")
            if eps is None:
                args, kwargs["eps"] = args[:3], torch.finfo(torch.float32).eps
        return func(*args, **kwargs)
