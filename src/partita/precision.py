"""What ``verify`` needs to run a model in another precision than its own."""

from __future__ import annotations

import copy
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from partita.compiler.capture.torch_private import pytree
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.program import has_info, info
from partita.passes.promote_precision import promote_tensor

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


def doubled(model: torch.nn.Module) -> torch.nn.Module:
    """Return a copy in double precision, tensors in plain attributes included."""
    leaves = pytree.tree_leaves([list(vars(m).values()) for m in model.modules()])
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    plain = [t for t in tensors if not isinstance(t, torch.nn.Parameter)]
    memo: dict[int, Any] = {id(tensor): promote_tensor(tensor) for tensor in plain}
    return copy.deepcopy(model, memo).double()


class SingleConstants(TorchFunctionMode):
    """Within it tensors made of numbers are float32 where they are in the capture.

    There ``torch.tensor(0.1)`` is of the default dtype, and a constant from then on.
    An RMS norm without an ``eps`` takes that of its input's dtype, and ``new_tensor``
    its dtype: float32 too, unless ``model`` itself is in double precision.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        is_single = all(p.dtype != torch.float64 for p in model.parameters())
        made = (torch.tensor, torch.as_tensor)
        self._is_single = is_single
        self._made = (*made, torch.Tensor.new_tensor) if is_single else made

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run ``func``, with a dtype or an epsilon where it depends on one."""
        kwargs = dict(kwargs or {})
        if func in (torch.rms_norm, torch.nn.functional.rms_norm) and self._is_single:
            eps = args[3] if len(args) > 3 else kwargs.get("eps")
            if eps is None:
                args, kwargs["eps"] = args[:3], torch.finfo(torch.float32).eps
        result = func(*args, **kwargs)
        if func in self._made and kwargs.get("dtype") is None:
            data = kwargs.get("data", next(reversed(args), None))
            if not hasattr(data, "dtype") and result.dtype == torch.float64:
                return func(*args, **kwargs | {"dtype": torch.float32})
        return result
