"""Capture: an nn.Module and its example inputs -> one functional joint program.

The user's module is traced as it is, backward and all (``direct.py``). Where that
cannot be, or the model is to be run in mixed precision, ``torch.export`` (non-strict)
traces the module first; what stands in its way is what the user is told. What comes out
holds only aten ops and ``partita::attention``, no views of views' bookkeeping, no
device and no dtype that the model did not name.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import fx

from partita.compiler.capture.attributes import check_unwritten, plain_tensors
from partita.compiler.capture.bags import unify_bags
from partita.compiler.capture.canonicalize import (
    canonicalize,
    drop_checks,
    lift_own_tensors,
)
from partita.compiler.capture.dense_gradients import dense_gradients
from partita.compiler.capture.direct import trace, try_trace
from partita.compiler.capture.fake_copy import fake_copy
from partita.compiler.capture.fingerprint import fingerprint, is_same_program
from partita.compiler.capture.inputs import InputSpec, check_dense, describe
from partita.compiler.capture.joint import joint_of
from partita.compiler.capture.kept_numbers import kept_numbers
from partita.compiler.capture.keys import find_frames, user_frames
from partita.compiler.capture.mixed_precision import (
    PRECISIONS,
    as_before,
    autocasting,
    cast_inside,
    share_copies,
)
from partita.compiler.capture.next_call import check_next_call
from partita.compiler.capture.ordered_sets import ordered_sets
from partita.compiler.capture.other_draws import whatever_is_drawn
from partita.compiler.capture.output_form import OutputForm
from partita.compiler.capture.quiet import quiet_failure
from partita.compiler.capture.reading import Reading
from partita.compiler.capture.roles import read_roles
from partita.compiler.capture.running_means import whole_batches
from partita.compiler.capture.scored_model import LossFunction, ScoredModel
from partita.compiler.capture.shared_memory import check_apart
from partita.compiler.capture.torch_private import (
    GRADIENT_HOOKS,
    LEFT_HOOKS,
    any_name,
    is_composed,
    unread_masks,
    without_code,
    without_mkldnn,
)
from partita.compiler.capture.unify_attention import unify_attention
from partita.compiler.capture.value_checks import passing_checks
from partita.compiler.errors import CaptureFailed
from partita.compiler.ir.program import Program

_FROM_OUTSIDE = (
    "a tensor is used that is no input, parameter or buffer of the model; make it one, "
    "e.g. pass a loss's target to the model"
)
_NOT_GIVEN = (
    "the backward of an autograd.Function uses a tensor that the function was not "
    "given, such as a parameter; make it an input, whose gradient backward returns"
)
_READ_OFF = (
    "a number is read off a tensor's values, as .item() and .tolist() do; keep it a "
    "tensor, and sizes independent of values"
)
_SIGNS_OF_READING = ("aten._local_scalar_dense", "Could not extract specialized")
_BRANCHES = (
    "the code does one thing or another by a tensor's values; compute both and take "
    "torch.where, or give what decides as a number"
)
_SIZED = (
    "a shape depends on values, as those of x[mask], nonzero and unique do; keep all "
    "elements, as an expert that runs on all rows does, and multiply by the mask or "
    "take torch.where; in a loss, give what is left out its ignore_index as target"
)
_SPARSE = (
    "a sparse tensor is used, of which placements have no parts; keep its indices and "
    "values, for index_add of what x[indices] has, or its to_dense()"
)

_OF_PYTHON = (TypeError, AttributeError, LookupError)
"""What code raises that is handed nothing where it wants a tensor."""
_MOVED = "Couldn't swap"
"""What torch says of ``module.to(dtype)`` where it exports the module."""


@dataclass(frozen=True)
class Captured:
    """A program, the spec of its inputs, and the form of what the model returns."""

    program: Program
    inputs: InputSpec
    outputs: OutputForm

    @cached_property
    def fingerprint(self) -> str:
        """What identifies the program; see ``fingerprint``."""
        return fingerprint(self.program, self.reading)

    @cached_property
    def reading(self) -> Reading:
        """What the nodes of the program use and call."""
        return Reading.of(self.program)


def capture(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    loss: LossFunction | None = None,
    train: bool = True,
    precision: str | None = None,
) -> Captured:
    """Capture ``model`` called as ``model(*args, **kwargs)``.

    Args:
        model: any module that ``torch.export`` takes; meta tensors are welcome.
        args: positional example inputs of one global batch.
        kwargs: keyword example inputs.
        loss: computes the scalar loss from the outputs; see ``pick_loss``.
        train: capture the backward too; otherwise only the outputs.
        precision: of mixed precision, see ``mixed_precision``; ``None``: the model's.

    Raises:
        CaptureFailed: naming the line of the user's model that stands in the way.
    """
    if not isinstance(cast(object, model), torch.nn.Module):
        raise CaptureFailed(f"the model is a {type(model).__name__}; want an nn.Module")
    spec = describe(model, args, kwargs)
    return capture_spec(model, spec, loss=loss, train=train, precision=precision)


@contextmanager
def _made_on_cpu() -> Generator[None]:
    """Within it tensors are made on the CPU, whatever the default device is."""
    is_so = torch.get_default_device().type == "cpu"
    with nullcontext() if is_so else torch.device("cpu"):
        yield


@any_name()
@_made_on_cpu()
def capture_spec(
    model: torch.nn.Module,
    spec: InputSpec,
    *,
    loss: LossFunction | None = None,
    train: bool = True,
    precision: str | None = None,
) -> Captured:
    """Capture ``model`` for inputs of the types in ``spec``; see ``capture``."""
    make = partial(_captured, model, spec, loss, train, precision)
    return whatever_is_drawn(model, make, _is_same)


def _is_same(one: Captured, other: Captured) -> bool:
    return is_same_program(one.program, other.program)


def _captured(
    model: torch.nn.Module,
    spec: InputSpec,
    loss: LossFunction | None,
    train: bool,
    precision: str | None,
) -> Captured:
    _check_plain(model)
    given = model
    numbers = kept_numbers(model)
    tensors_of_model = (*model.parameters(), *model.buffers())
    making = nullcontext()
    if any(tensor.device.type != "cpu" for tensor in tensors_of_model):
        model, making = fake_copy(model)
    with making:
        tensors = tuple(spec.example(torch.device("cpu")).values())
    form, plain = OutputForm(), plain_tensors(model)
    scored = ScoredModel(model, spec, loss, train, form)
    program = _program(scored, tensors, form, precision, numbers)
    check_unwritten(model, plain)
    check_apart(given, program.changed)
    if train and not program.trained:
        raise CaptureFailed(
            f"{type(model).__name__}: the loss depends on no parameter that requires a "
            "gradient; train one, or give Options(train=False) for inference"
        )

    def traced(*, shows_left: bool = False) -> Program:
        form = OutputForm()
        scored = ScoredModel(model, spec, loss, train, form, shows_left)
        return _program(scored, tensors, form, precision, numbers)

    check_next_call(model, scored.left.changes, program, traced)
    return Captured(program, spec, form)


def _program(
    scored: ScoredModel,
    tensors: tuple[torch.Tensor, ...],
    form: OutputForm,
    precision: str | None,
    numbers: Mapping[str, int],
) -> Program:
    """Return the program of ``scored``, called with ``tensors``."""
    model, spec = scored.model, scored.spec
    with (
        passing_checks(),
        whole_batches(),
        unread_masks(),
        dense_gradients(),
        ordered_sets(model),
    ):
        joint = try_trace(scored, tensors) if precision is None else None
        if joint is None:
            joint = _exported_or_run(model, scored, tensors, form, precision, numbers)
    program = read_roles(joint, model, spec, form.returned, scored.is_trained)
    program = canonicalize(program)
    return program if precision is None else share_copies(program)


def _check_plain(model: torch.nn.Module) -> None:
    """Check that the tensors of a model are torch's own, and have no hooks.

    Raises:
        CaptureFailed: naming one that is not so.
    """
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_composed(tensor):
            raise CaptureFailed(
                f"{name!r} is a {type(tensor).__name__}, which is made of other "
                "tensors, as quantized ones and those of FSDP or tensor parallelism "
                "are; want a model of plain tensors"
            )
        check_dense(repr(name), tensor)
        if any(getattr(tensor, hooks, None) for hooks in (GRADIENT_HOOKS, LEFT_HOOKS)):
            raise CaptureFailed(
                f"{name!r} has a hook on its gradient, which a program would not call; "
                "register it on the program's own parameters (program.parameters())"
            )


def _exported_or_run(
    model: torch.nn.Module,
    scored: ScoredModel,
    tensors: tuple[torch.Tensor, ...],
    form: OutputForm,
    precision: str | None,
    numbers: Mapping[str, int],
) -> fx.GraphModule:
    """Return the joint graph of ``scored``, exported or, at last, as it is run.

    A model that is told it is being exported may leave out what it needs, such as a
    mask that it makes for itself. If that is why its own code failed, what stands in
    the way of a run is told.

    Raises:
        CaptureFailed: when it cannot be traced.
    """
    try:
        return _exported(model, scored, tensors, form, precision)
    except CaptureFailed as failed:
        scored.seen_as_run, scored.precision = True, precision
        joint = try_trace(scored, tensors)
        scored.precision = None  # an export is cast around
        if joint is None and numbers:
            joint = _with_known(model, scored, tensors, form, precision, numbers)
        if joint is not None:
            return joint
        if not _is_of_export(failed.__cause__):
            raise
        try:
            with quiet_failure():
                trace(scored, tensors)
        except (Exception, SystemExit) as error:
            if type(error) is not type(failed.__cause__):
                raise CaptureFailed(_explain(model, error)) from error
        raise


def _with_known(
    model: torch.nn.Module,
    scored: ScoredModel,
    tensors: tuple[torch.Tensor, ...],
    form: OutputForm,
    precision: str | None,
    numbers: Mapping[str, int],
) -> fx.GraphModule | None:
    """Return the joint graph of ``scored`` with numbers it keeps, if there is one."""
    scored.seen_as_run, scored.known = False, numbers
    try:
        return _exported(model, scored, tensors, form, precision)
    except CaptureFailed:
        return None
    finally:
        scored.seen_as_run, scored.known = True, {}


def _is_of_export(error: BaseException | None) -> bool:
    """Whether what failed in an export may well work in a run."""
    return isinstance(error, _OF_PYTHON) or _MOVED in str(error)


def _exported(
    model: torch.nn.Module,
    scored: ScoredModel,
    tensors: tuple[torch.Tensor, ...],
    form: OutputForm,
    precision: str | None,
) -> fx.GraphModule:
    """Return the joint graph of ``scored``, exported first where that keeps it all.

    Raises:
        CaptureFailed: when it cannot be traced.
    """
    try:
        casting = autocasting(precision)
        with without_mkldnn(), without_code(), quiet_failure(), casting:
            exported = torch.export.export(scored, tensors, strict=False)
        if form.has_own_backward:  # which export forgets
            scored.precision = precision
            return trace(scored, tensors)
        module = exported.module(check_guards=False)
        assert isinstance(module, fx.GraphModule)
        drop_checks(module)
        lift_own_tensors(module, exported.constants, model)
        unify_attention(module, PRECISIONS.get(precision or ""))
        unify_bags(module)
        if precision is not None:
            cast_inside(module, precision)
        with as_before():
            return joint_of(module, tensors, scored.is_trained)
    except CaptureFailed:
        raise
    except (Exception, SystemExit) as error:
        raise CaptureFailed(_explain(model, error)) from error


def _explain(model: torch.nn.Module, error: BaseException) -> str:
    """Return one line: what failed, and the user's line that it came from.

    It is the innermost line of the model's own package, else of anyone but torch and
    Partita; failures inside of a traced graph tell it in their text alone.
    """
    reason = str(error).strip().splitlines() or [type(error).__name__]
    trace = traceback.extract_tb(error.__traceback__)
    frames = [(frame.filename, str(frame.lineno)) for frame in trace]
    if "convert all Tensors to FakeTensors" in reason[0]:
        backwards = [
            f for f, e in zip(frames, trace, strict=True) if e.name == "backward"
        ]
        reason[0] = _NOT_GIVEN if user_frames(backwards) else _FROM_OUTSIDE
    elif any(sign in reason[0] for sign in _SIGNS_OF_READING):
        reason[0] = _READ_OFF
    elif "Could not guard on data-dependent expression" in reason[0]:
        reason[0] = _BRANCHES
    elif type(error).__name__ == "DynamicOutputShapeException":
        reason[0] = f"{_SIZED} ({reason[0]})"
    elif "DispatchKey.Sparse" in reason[0]:
        reason[0] = _SPARSE
    found = user_frames(frames) or user_frames(find_frames(str(error)))
    home = getattr(sys.modules.get(type(model).__module__), "__file__", None) or ""
    own = [frame for frame in found if _is_beside(Path(frame[0]), Path(home).parent)]
    where = ":".join((own or found)[-1]) + ": " if found else ""
    return (
        f"{where}cannot capture {type(model).__name__}: {reason[0]} "
        f"({type(error).__name__})"
    )


def _is_beside(file: Path, folder: Path) -> bool:
    """Whether ``file`` is in ``folder``, and not in an environment that is there."""
    inside = file.is_relative_to(folder)
    return inside and "site-packages" not in file.relative_to(folder).parts
