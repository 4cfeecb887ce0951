"""Trace the step of a model as it is, op by op, or with AOTAutograd where it writes.

It is less work than ``torch.export`` first and a trace of what that returns, and it
follows the backward of an ``autograd.Function``. Of what export notes by each op, the
module that called it and the line of the model's code, it notes what keys and sources
are made of.

Not every model can be traced so: a tensor that is no input, parameter or buffer has no
value here, hooks on what the backward needs would be traced with it, and bags of
embeddings are only seen in what export returns.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import fx
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode

from partita.compiler.capture.attention import one_attention
from partita.compiler.capture.joint import joint_of, joint_without_writes
from partita.compiler.capture.keys import frame_text, is_user_file
from partita.compiler.capture.quiet import quiet_failure
from partita.compiler.capture.scored_model import ScoredModel
from partita.compiler.capture.torch_private import keeping_notes, notes_of_trace
from partita.compiler.errors import CaptureFailed

_STACK = "nn_module_stack"
_MADE = torch.ops.aten.lift_fresh_copy.default
_BAGS = frozenset(
    {
        torch.ops.aten._embedding_bag.default,
        torch.ops.aten._embedding_bag_forward_only.default,
    }
)


def trace(scored: ScoredModel, tensors: tuple[torch.Tensor, ...]) -> fx.GraphModule:
    """Return the joint graph of ``scored``, called with ``tensors``.

    Its forward is called once, and twice more where it writes to tensors.

    Raises:
        Exception: any, where the model cannot be traced as it is.
    """
    try:
        with _noting(scored):
            return joint_without_writes(scored, tensors, scored.is_trained)
    except CaptureFailed:
        raise
    except Exception:  # if it is no write, it stands in the way below too
        with _noting(scored):
            return joint_of(scored, tensors, scored.is_trained)


def try_trace(
    scored: ScoredModel, tensors: tuple[torch.Tensor, ...]
) -> fx.GraphModule | None:
    """Return what ``trace`` does where that holds all that is to be known of the model.

    Raises:
        CaptureFailed: as the model does, when it says itself what is wrong.
    """
    try:
        with quiet_failure(), disable_saved_tensors_hooks("a trace"):
            joint = trace(scored, tensors)
    except CaptureFailed:
        raise
    except (Exception, SystemExit):
        return None  # what stands in the way is told of the export
    return None if any(map(_is_less, joint.graph.nodes)) else joint


def _is_less(node: fx.Node) -> bool:
    """Whether an op or a tensor means something that is only seen in an export."""
    if node.op == "get_attr":  # what the model itself makes of numbers is copied
        return any(user.target is not _MADE for user in node.users)
    return node.target in _BAGS


@contextmanager
def _noting(scored: ScoredModel) -> Generator[None]:
    """Within it the ops of a trace are noted to be of their modules and lines."""
    with keeping_notes(), one_attention(), _noted_modules(scored), _NotedLines():
        yield


class _NotedLines(TorchFunctionMode):
    """Within it each op of a trace is noted to be of the line that called it."""

    def __init__(self) -> None:
        """Look once who calls the trace: it is far to go, and the same for all ops."""
        super().__init__()
        self._around = _calling(inspect.currentframe())

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run ``func``."""
        notes_of_trace()["stack_trace"] = _calling(inspect.currentframe(), self._around)
        return func(*args, **(kwargs or {}))


def _calling(frame: FrameType | None, around: str = "") -> str:
    """Return the line that is told of an op that a frame calls, or one it called.

    It is the innermost one of a forward that is the model's own, else of other code of
    its own, as of a loss function, else ``around`` outside of the model's forward,
    else of torch's modules.
    """
    own: FrameType | None = None
    torchs: FrameType | None = None
    while frame is not None and frame.f_code is not ScoredModel.forward.__code__:
        if around and frame.f_code is trace.__code__:
            return _text(own) if own else around
        is_forward = frame.f_code.co_name == "forward"
        if not is_user_file(frame.f_code.co_filename):
            torchs = torchs or (frame if is_forward else None)
        elif is_forward:
            return _text(frame)
        else:
            own = own or frame
        frame = frame.f_back
    told = own or torchs
    return _text(told) if told is not None else ""


def _text(frame: FrameType) -> str:
    return frame_text(frame.f_code.co_filename, frame.f_lineno)


@contextmanager
def _noted_modules(root: torch.nn.Module) -> Generator[None]:
    """Within it each op of a trace is noted to be of the module that called it."""
    names = {id(module): name for name, module in root.named_modules()}
    around: list[Any] = []  # what was noted as each of the modules was entered

    def enter(module: torch.nn.Module, args: Any) -> None:
        notes, name = notes_of_trace(), names.get(id(module))
        around.append(notes.get(_STACK))
        if name is not None:
            notes[_STACK] = {name: (name, type(module))}

    def leave(module: torch.nn.Module, args: Any, returned: Any) -> None:
        notes = notes_of_trace()
        notes[_STACK] = around.pop()
        if notes[_STACK] is None:
            del notes[_STACK]
            notes.pop("stack_trace", None)

    hooks = (
        register_module_forward_pre_hook(enter),
        register_module_forward_hook(leave, always_call=True),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
