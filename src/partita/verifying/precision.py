"""What ``verify`` needs to run a model in another precision than its own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode

from partita.compiler.capture.schemas import writes_in_place
from partita.compiler.capture.torch_private import DispatchMode, pytree
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


_MADE_OF_NUMBERS = (torch.tensor, torch.as_tensor, torch.Tensor.new_tensor)
_FINFO = torch.finfo
_WRITE = torch.Tensor.__setitem__
_NORMS = (torch.rms_norm, torch.nn.functional.rms_norm)

Notes = list[tuple[Any, torch.dtype]]


class ConstantDtypes(TorchFunctionMode):
    """Notes the dtypes of a model's constants; given ``notes``, keeps to them.

    A program in double precision holds the constants of the capture: the float32 that
    ``torch.tensor(0.1)`` was there. In double its eager model would make others, of
    the default dtype or of that of an input. The ``eps`` of an RMS norm is such a
    constant too, and is rounded as its sum is, as are a number that is written to
    elements of a tensor and all that ``torch.finfo`` says of a dtype.
    """

    def __init__(self, notes: Notes | None = None) -> None:
        super().__init__()
        self.notes: Notes = []
        self._left: dict[Any, list[torch.dtype]] | None = None
        if notes is not None:
            self._left = {func: [] for func, _ in notes}
            for func, dtype in reversed(notes):
                self._left[func].append(dtype)
        self._asking = patch.object(torch, _FINFO.__name__, self._finfo)

    def __enter__(self) -> ConstantDtypes:
        """Note constants, or keep to them, from now on."""
        self._asking.start()
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        """Leave constants alone again."""
        self._asking.stop()
        super().__exit__(*raised)

    def _finfo(self, *of: torch.dtype) -> torch.finfo:
        """Return what ``torch.finfo`` says of a dtype, or of the one of before."""
        (asked,) = of or (torch.get_default_dtype(),)
        return _FINFO(self._dtype(_FINFO, asked))

    def _dtype(self, func: Any, found: torch.dtype) -> torch.dtype:
        """Note a constant's dtype; return the one that it had where it is known."""
        if self._left is None:
            self.notes.append((func, found))
            return found
        left = self._left.get(func)
        before = left.pop() if left else found
        return before if before.is_floating_point else found

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run ``func``, with the dtype or epsilon of before where it has one."""
        kwargs = dict(kwargs or {})
        if func is _WRITE and isinstance(args[2], float):
            dtype = self._dtype(func, args[0].dtype)
            if dtype.is_floating_point:
                args = (*args[:2], torch.tensor(args[2], dtype=dtype).item())
            return func(*args)
        if func not in (*_MADE_OF_NUMBERS, *_NORMS):
            return self._mixed(func, args, kwargs)
        result = func(*args, **kwargs)
        dtype = self._dtype(func, result.dtype)
        if dtype == result.dtype:
            return result
        if func in _MADE_OF_NUMBERS:
            return func(*args, **kwargs | {"dtype": dtype})
        rounding = dtype if dtype == torch.float64 else torch.float32  # of its sum
        eps = args[3] if len(args) > 3 else kwargs.get("eps")
        if eps is None:
            eps = _FINFO(rounding).eps
        args, kwargs["eps"] = args[:3], torch.tensor(eps, dtype=rounding).item()
        return func(*args, **kwargs)

    def _mixed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run ``func``, of doubles alone where it takes them with no such constant.

        Before any op is dispatched some functions check that what they are given is of
        one dtype: ``prelu`` and ``grid_sample`` are such.
        """
        try:
            return func(*args, **kwargs)
        except RuntimeError:
            writes = func.__name__.endswith("_")
            if self._left is None or writes or not _is_of_many((args, kwargs)):
                raise
        given = pytree.tree_map_only(torch.Tensor, promote_tensor, (args, kwargs))
        return func(*given[0], **given[1])


def _is_of_many(given: Any) -> bool:
    """Whether there are tensors of several floating dtypes among what is given."""
    tensors = [x for x in pytree.tree_leaves(given) if isinstance(x, torch.Tensor)]
    return len({x.dtype for x in tensors if x.is_floating_point()}) > 1


class _PromotingMode(DispatchMode):
    def __init__(
        self,
        promote: Callable[[Any], Any],
        tensor: Callable[[torch.Tensor], torch.Tensor],
        instead: Mapping[Any, Callable[..., Any]],
    ) -> None:
        super().__init__()
        self._promote = promote
        self._tensor = tensor
        self._instead = instead

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        args, named = self._promote(args), self._promote(kwargs or {})
        keeps = writes_in_place(func) or func.is_view  # what it is given
        if not keeps:
            args = pytree.tree_map_only(torch.Tensor, self._tensor, args)
            named = pytree.tree_map_only(torch.Tensor, self._tensor, named)
        return self._instead.get(func, func)(*args, **named)


def promoting_floats(
    promote: Callable[[Any], Any],
    tensor: Callable[[torch.Tensor], torch.Tensor] = lambda x: x,
    instead: Mapping[Any, Callable[..., Any]] | None = None,
) -> AbstractContextManager[Any]:
    """Return a mode in which every op runs with other arguments.

    Args:
        promote: of the arguments, the dtypes among them.
        tensor: of a tensor among them, such as a constant that the model made.
        instead: what an op does that has no kernel for doubles.
    """
    return _PromotingMode(promote, tensor, instead or {})
