"""Capture: an nn.Module and its example inputs -> one functional joint program.

``torch.export`` (non-strict) traces the user's module as it is, AOTAutograd adds the
backward. What comes out holds only aten ops and ``partita::attention``, no views of
views' bookkeeping, no device and no dtype that the model did not name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from partita.compiler.capture.canonicalize import canonicalize, unify_attention
from partita.compiler.capture.decompositions import FROM_TORCH, OWN
from partita.compiler.capture.inputs import InputSpec, describe
from partita.compiler.capture.roles import read_roles
from partita.compiler.capture.scored_model import LossFunction, ScoredModel
from partita.compiler.capture.torch_private import export_joint, output_names
from partita.compiler.errors import CaptureFailed
from partita.compiler.ir.program import Program


@dataclass(frozen=True)
class Captured:
    """A program and the spec of the inputs it was captured with."""

    program: Program
    inputs: InputSpec


def capture(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    loss: LossFunction | None = None,
    train: bool = True,
) -> Captured:
    """Capture ``model`` called as ``model(*args, **kwargs)``.

    Args:
        model: any module that ``torch.export`` takes; meta tensors are welcome.
        args: positional example inputs of one global batch.
        kwargs: keyword example inputs.
        loss: computes the scalar loss from the outputs; see ``pick_loss``.
        train: capture the backward too; otherwise only the outputs.

    Raises:
        CaptureFailed: naming the line of the user's model that stands in the way.
    """
    spec = describe(model, args, kwargs)
    return capture_spec(model, spec, loss=loss, train=train)


def capture_spec(
    model: torch.nn.Module,
    spec: InputSpec,
    *,
    loss: LossFunction | None = None,
    train: bool = True,
) -> Captured:
    """Capture ``model`` for inputs of the types in ``spec``; see ``capture``."""
    first = next(iter(model.parameters()), None)
    device = torch.device("cpu") if first is None else first.device
    tensors = tuple(spec.example(device).values())
    scored = ScoredModel(model, spec, loss, train)
    scored.train(model.training)
    try:
        exported = torch.export.export(scored, tensors, strict=False)
        module = exported.module()
    except CaptureFailed:
        raise
    except Exception as error:
        raise CaptureFailed(_explain(model, error)) from error
    unify_attention(module)
    try:
        with torch.set_grad_enabled(train):
            joint = export_joint(module, tensors, FROM_TORCH, OWN)
    except Exception as error:
        raise CaptureFailed(_explain(model, error)) from error
    names = tuple(output_names(exported))
    program = read_roles(joint, model, spec, names, train)
    return Captured(canonicalize(program), spec)


def _explain(model: torch.nn.Module, error: BaseException) -> str:
    """Return one line: what failed, and the user's line that it came from."""
    where = ""
    trace = error.__traceback__
    own = type(model).__module__.split(".", maxsplit=1)[0]
    while trace is not None:
        name = trace.tb_frame.f_globals.get("__name__", "")
        if name == own or name.startswith(f"{own}."):
            where = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}: "
        trace = trace.tb_next
    reason = str(error).strip().splitlines() or [type(error).__name__]
    return (
        f"{where}cannot capture {type(model).__name__}: {reason[0]} "
        f"({type(error).__name__})"
    )
