"""Checks of values pass while a model is traced.

What is traced has no values. Where the truth of a tensor is asked for, of itself or as
``.item()``, and one of the two answers does nothing but raise (``assert``,
``if ...: raise``, the checks of ``torch.distributions``), the other one is given: the
program that is captured goes the way of values that are right, and does not check them.
So are values finite wherever the model asks whether they are
(``if not torch.isfinite(x).all(): x = x.clamp(...)``).

Not here: code that does one thing or another by values; no answer is right for it. If
they are drawn, what is told says so.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from partita.compiler.capture.torch_private import unvalidated_distributions

_ENDS = ("JUMP", "RETURN", "YIELD", "FOR_ITER", "SEND")  # or leaves, or comes back
_ASKING = "PRECALL", "CALL", "TO_BOOL"
"""What may come before the jump: a call in 3.11, of .item() or bool(); from 3.13 on."""


@contextmanager
def passing_checks() -> Generator[None]:
    """Within it the truth of a tensor is whatever does not raise."""
    truth, number = Tensor.__bool__, Tensor.item

    def answer(tensor: Tensor) -> bool:
        passes = _passing(inspect.currentframe())  # a frame that held itself would stay
        if passes is None:
            passes = _known(tensor)
        if passes is None and vars(tensor).get(_IS_DRAWN):
            raise DrawnBranch(_DRAWN_BRANCH)
        return truth(tensor) if passes is None else passes

    def read(tensor: Tensor) -> bool | int | float:
        passes = _passing(inspect.currentframe())
        if passes is None:
            passes = _known(tensor)
        return number(tensor) if passes is None else passes

    answering = patch.object(Tensor, truth.__name__, answer)
    reading = patch.object(Tensor, number.__name__, read)
    with answering, reading, unvalidated_distributions():
        yield


class DrawnBranch(RuntimeError):
    """A program would do in every step what was drawn as it was captured."""


_DRAWN_BRANCH = (
    "the code does one thing or another by a number that is drawn, as a layer that is "
    "dropped whole; let none be dropped (layerdrop=0 in transformers' configs), or "
    "compute both and take torch.where"
)


def _telling(func: Callable[..., Tensor], known: bool) -> Callable[..., Tensor]:
    """Return ``func``, which notes that all that it returns is ``known``."""

    def tell(*args: Any, **kwargs: Any) -> Tensor:
        found = func(*args, **kwargs)
        _note(found, known)
        return found

    return tell


def _note(tensor: Tensor, known: bool) -> None:
    setattr(tensor, _KNOWN, (known, _num_writes(tensor)))


def _known(tensor: Tensor) -> bool | None:
    """Return what is known of a tensor, unless it has been written to since."""
    known, num_writes = vars(tensor).get(_KNOWN, (None, None))
    return known if num_writes == _num_writes(tensor) else None


def _num_writes(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version  # which has no count


def _handing_on(func: Callable[..., Tensor], negates: bool) -> Callable[..., Tensor]:
    """Return ``func`` of one tensor, which notes what follows from what is known."""

    def hand_on(*args: Any, **kwargs: Any) -> Tensor:
        found = func(*args, **kwargs)
        known = _known(args[0]) if args else None
        if known is not None:
            _note(found, known is not negates)
        return found

    return hand_on


def _telling_of_draws(func: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return ``func``, which notes that all that it returns is drawn."""

    def tell(*args: Any, **kwargs: Any) -> Tensor:
        found = func(*args, **kwargs)
        setattr(found, _IS_DRAWN, True)
        return found

    return tell


def _comparing(func: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return ``func``, which notes that what it returns is of something drawn."""

    def compare(*args: Any, **kwargs: Any) -> Tensor:
        found = func(*args, **kwargs)
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        if any(vars(tensor).get(_IS_DRAWN) for tensor in tensors):
            setattr(found, _IS_DRAWN, True)
        return found

    return compare


_KNOWN = "_partita_is_true"
_IS_DRAWN = "_partita_is_drawn"
_FINITE = (torch.isfinite, Tensor.isfinite)
_NOT_FINITE = (torch.isinf, Tensor.isinf, torch.isnan, Tensor.isnan)
_WHOLE = (torch.all, Tensor.all, torch.any, Tensor.any)
_NEGATED = (torch.logical_not, Tensor.logical_not, Tensor.__invert__)

FINITE: dict[Any, Callable[..., Tensor]] = {
    **{func: _telling(func, known=True) for func in _FINITE},
    **{func: _telling(func, known=False) for func in _NOT_FINITE},
    **{func: _handing_on(func, negates=False) for func in _WHOLE},
    **{func: _handing_on(func, negates=True) for func in _NEGATED},
}
"""What stands in the place of torch's functions, so that all values are finite."""

_DRAWING = (torch.rand, torch.bernoulli, torch.randint, Tensor.uniform_)
_COMPARING = tuple(
    getattr(Tensor, name)
    for name in ("__lt__", "__le__", "__gt__", "__ge__", "lt", "le", "gt", "ge")
)

DRAWN: dict[Any, Callable[..., Tensor]] = {
    **{func: _telling_of_draws(func) for func in _DRAWING},
    **{func: _comparing(func) for func in _COMPARING},
}
"""What stands in the place of torch's functions, so that branches by draws are told."""


def _passing(here: FrameType | None) -> bool | None:
    """Return the answer that does not raise; ``None`` where both or neither do.

    The one that asks is the caller of ``here``.
    """
    frame = here.f_back if here is not None else None
    if frame is not None and _is_truth_of_torchs(frame):
        frame = frame.f_back
    if frame is None:
        return None
    code = list(dis.get_instructions(frame.f_code))
    # The last offset of a call may be that of a cache behind it, which is not listed.
    at = sum(found.offset <= frame.f_lasti for found in code) - 1
    for name in _ASKING:
        at += code[at].opname.startswith(name)
    asks = code[at]
    if not asks.opname.startswith("POP_JUMP"):
        return None
    jumps_if = asks.opname.endswith("_IF_TRUE")
    there = next(n for n, found in enumerate(code) if found.offset == asks.argval)
    raises_here, raises_there = _raises(code[at + 1 :]), _raises(code[there:])
    if raises_here == raises_there:
        return None
    return jumps_if if raises_here else not jumps_if


def _is_truth_of_torchs(frame: FrameType) -> bool:
    """Whether a tensor of a trace that takes writes apart asks for its own number."""
    module = str(frame.f_globals.get("__name__"))  # code that is run by exec has none
    return frame.f_code.co_name == "__bool__" and module.startswith("torch.")


def _raises(code: list[dis.Instruction]) -> bool:
    """Whether ``code`` raises before it branches or returns."""
    for instruction in code:
        if instruction.opname == "RAISE_VARARGS":
            return True
        if any(name in instruction.opname for name in _ENDS):
            return False
    return False
