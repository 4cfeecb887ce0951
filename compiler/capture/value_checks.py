"""Checks of values pass while a model is traced.

What is traced has no values. Where the truth of a tensor is asked for, and one of the
two answers does nothing but raise (``assert``, ``if ...: raise``, the checks of
``torch.distributions``), the other one is given: the program that is captured goes the
way of values that are right, and does not check them. So are values finite wherever the
model asks whether they are (``if not torch.isfinite(x).all(): x = x.clamp(...)``).

Not here: code that does one thing or another by values; no answer is right for it.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode

from partita.compiler.capture.torch_private import unvalidated_distributions

_ENDS = ("JUMP", "RETURN", "YIELD", "FOR_ITER", "SEND")  # or leaves, or comes back


@contextmanager
def passing_checks() -> Generator[None]:
    """Within it the truth of a tensor is whatever does not raise."""
    truth = torch.Tensor.__bool__

    def answer(tensor: torch.Tensor) -> bool:
        passes = _passing(inspect.currentframe())  # a frame that held itself would stay
        if passes is None:
            passes = vars(tensor).get(_KNOWN)
        return truth(tensor) if passes is None else passes

    answering = patch.object(torch.Tensor, truth.__name__, answer)
    with answering, _Finite(), unvalidated_distributions():
        yield


class _Finite(TorchFunctionMode):
    """Within it what tells whether values are finite knows that all of them are."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run ``func``, and note the truth of what it returns where that is known."""
        found = func(*args, **(kwargs or {}))
        known = _ASKS.get(func)
        if known is None and func in _HANDS_ON:
            known = vars(args[0]).get(_KNOWN)
            known = known if known is None else known is not (func in _NEGATES)
        if known is not None:
            setattr(found, _KNOWN, known)
        return found


_KNOWN = "_partita_is_true"
_ASKS: dict[Any, bool] = {
    torch.isfinite: True,
    torch.Tensor.isfinite: True,
    torch.isinf: False,
    torch.Tensor.isinf: False,
    torch.isnan: False,
    torch.Tensor.isnan: False,
}
_NEGATES = {torch.logical_not, torch.Tensor.logical_not, torch.Tensor.__invert__}
_HANDS_ON = {torch.all, torch.Tensor.all, torch.any, torch.Tensor.any, *_NEGATES}
"""Functions of one tensor, all of whose values are the same."""


def _passing(here: FrameType | None) -> bool | None:
    """Return the answer that does not raise; ``None`` where both or neither do.

    The one that asks is the caller of ``here``.
    """
    if here is None or here.f_back is None:
        return None
    frame = here.f_back
    code = list(dis.get_instructions(frame.f_code))
    at = next(n for n, found in enumerate(code) if found.offset == frame.f_lasti)
    at += code[at].opname == "TO_BOOL"  # from Python 3.13 on
    asks = code[at]
    if not asks.opname.startswith("POP_JUMP"):
        return None
    jumps_if = asks.opname.endswith("_IF_TRUE")
    there = next(n for n, found in enumerate(code) if found.offset == asks.argval)
    raises_here, raises_there = _raises(code[at + 1 :]), _raises(code[there:])
    if raises_here == raises_there:
        return None
    return jumps_if if raises_here else not jumps_if


def _raises(code: list[dis.Instruction]) -> bool:
    """Whether ``code`` raises before it branches or returns."""
    for instruction in code:
        if instruction.opname == "RAISE_VARARGS":
            return True
        if any(name in instruction.opname for name in _ENDS):
            return False
    return False
