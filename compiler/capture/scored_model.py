"""The model with its loss picked out: what capture traces.

The loss is the model's scalar output, or its ``.loss``, or what the user's own
function computes from the outputs; nothing else is differentiated (DESIGN,
decision 12). Other tensors that the model returns become named outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from partita.compiler.capture.attributes import LEFT, Attributes, Left
from partita.compiler.capture.checkpoints import called_checkpoints
from partita.compiler.capture.counts import COUNT, bincount
from partita.compiler.capture.covariances import correlations, covariances
from partita.compiler.capture.ctc import ctc_loss, masked_select
from partita.compiler.capture.data_writes import SET_DATA, write_data
from partita.compiler.capture.gradient_hooks import GradientHooks
from partita.compiler.capture.in_place_of import InPlaceOf
from partita.compiler.capture.inputs import InputSpec
from partita.compiler.capture.kept_numbers import known_numbers
from partita.compiler.capture.masked_rows import SET_ITEM, set_item
from partita.compiler.capture.mixed_precision import autocasting
from partita.compiler.capture.output_form import OutputForm, name_outputs
from partita.compiler.capture.packed import refuse_packing
from partita.compiler.capture.selected import GET_ITEM, Selected
from partita.compiler.capture.several_labels import multilabel_margin_loss
from partita.compiler.capture.torch_private import (
    PACK,
    seen_as_export,
    tables_of,
)
from partita.compiler.capture.value_checks import DRAWN, FINITE
from partita.compiler.errors import CaptureFailed

LossFunction = Callable[[Any], Tensor]

_ROWS = tuple, list

_IN_PLACE: dict[Any, Callable[..., Any]] = {
    SET_DATA: write_data,
    SET_ITEM: set_item,
    **FINITE,
    COUNT: bincount,
    torch.Tensor.bincount: bincount,
    torch.masked_select: masked_select,
    torch.Tensor.masked_select: masked_select,
    **DRAWN,
    torch.ctc_loss: ctc_loss,
    torch.nn.functional.ctc_loss: ctc_loss,
    torch.nn.functional.multilabel_margin_loss: multilabel_margin_loss,
    torch.cov: covariances,
    torch.Tensor.cov: covariances,
    torch.corrcoef: correlations,
    torch.Tensor.corrcoef: correlations,
    PACK: refuse_packing,
}
"""What is called in place of what leaves too little, or too much, in a trace."""


def pick_loss(outputs: Any, loss: LossFunction | None) -> Tensor:
    """Return the scalar loss of a model's outputs.

    Raises:
        CaptureFailed: when there is none, or it is no floating scalar.
    """
    if loss is not None:
        found, what = loss(outputs), "Options(loss=...) returned"
    elif isinstance(outputs, Tensor):
        found, what = outputs, "the model returned"
    elif isinstance(outputs, dict) and "loss" in outputs:
        found, what = outputs["loss"], "the model's output 'loss' is"
    else:
        found = getattr(outputs, "loss", outputs)
        is_loss = found is not outputs
        what = "the model's output .loss is" if is_loss else "the model returned"
    if not isinstance(found, Tensor):
        raise CaptureFailed(
            f"no loss: {what} {type(found).__name__}; want a scalar tensor (return "
            "one, return an output with .loss, e.g. by passing labels, or give "
            f"Options(loss={_example(outputs)}), --loss file.py:function)"
        )
    if not _is_scalar(found):
        raise CaptureFailed(
            f"the loss is no scalar: {what} a tensor of shape {list(found.shape)} and "
            f"{found.dtype}; want one floating number, e.g. Options(loss=lambda out: "
            "out.mean()) or --loss file.py:function"
        )
    return found.reshape(())


def _example(outputs: Any) -> str:
    """Return a function that picks the only scalar of a tuple, as one would write it.

    It is not taken unasked: it may be a part of a loss that is computed elsewhere.
    """
    entries: tuple[Any, ...] = tuple(outputs) if isinstance(outputs, _ROWS) else ()
    scalars = [at for at, entry in enumerate(entries) if _is_scalar(entry)]
    return f"lambda out: out[{scalars[0]}]" if len(scalars) == 1 else "..."


def _is_scalar(value: Any) -> bool:
    if not isinstance(value, Tensor):
        return False
    return value.numel() == 1 and value.is_floating_point()


def has_own_backward(loss: Tensor) -> bool:
    """Whether ``loss`` was computed by an ``autograd.Function`` of the model's.

    Export traces through their forward and forgets their backward. Those of torch
    itself stand for ops, or have a backward that autograd knows too.
    """
    seen: set[Any] = set()
    left: list[Any] = [loss.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        left.extend(before for before, _ in node.next_functions)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            function: Any = vars(type(node))["_forward_cls"]
            if function.__module__.partition(".")[0] != "torch":
                return True
    return False


def name_outputs_beside_loss(
    outputs: Any, loss: LossFunction | None
) -> dict[str, Tensor]:
    """Return the tensors of ``name_outputs`` but the one that ``pick_loss`` picks.

    What a function of the outputs computes is none of them.
    """
    named = name_outputs(outputs)
    if loss is None:
        named.pop("output" if isinstance(outputs, Tensor) else "loss", None)
    return named


class ScoredModel(torch.nn.Module):
    """Calls the user's model on a flat list of tensors; returns loss and outputs.

    ``precision`` is that of a forward which nothing around it casts; ``is_trained``
    says whether there is to be a loss. Checkpoints in the model only call their
    functions. One that is ``seen_as_run`` is not told that it is being exported, one
    with ``known`` numbers has these in the place of its buffers. ``left`` is what the
    last call left in the model's attributes; one that ``shows_left`` returns the
    tensors among it, too.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        spec: InputSpec,
        loss: LossFunction | None,
        train: bool,
        form: OutputForm,
        shows_left: bool = False,
    ) -> None:
        super().__init__()
        self._form = form
        self.model = model
        self.spec = spec
        self._loss = loss
        self.is_trained = train
        self.training = model.training  # not train(), which would reach its modules
        self.precision: str | None = None
        self.seen_as_run = False
        self.known: Mapping[str, int] = {}
        self.shows_left = shows_left
        self.left = Left()
        self._tied = _tied(model)

    def forward(self, *tensors: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the scalar loss (when training) and the named outputs, detached."""
        args, kwargs = self.spec.rebuild(
            dict(zip(self.spec.tensors, tensors, strict=True))
        )
        told = nullcontext() if self.seen_as_run else seen_as_export()
        casting = autocasting(self.precision)
        selected, hooks = Selected(), GradientHooks(self.model)
        others = {
            **_IN_PLACE,
            GET_ITEM: selected.get_item,
            Tensor.register_hook: hooks.register,
        }
        with called_checkpoints(), casting, InPlaceOf(others), told:
            scored = self._scored(args, kwargs)
        self._form.has_own_backward |= hooks.are_there
        selected.check_unwritten()
        return scored

    def _scored(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        before, attributes = _owned_buffers(self.model), Attributes(self.model)
        try:
            with _as_one(self._tied), known_numbers(self.model, self.known):
                returned = self.model(*args, **kwargs)
            _write_back(before)
        finally:
            self.left.changes = attributes.take_back()
        left = self._shown() if self.shows_left else {}
        self._form.learn(returned)
        if not self.is_trained:
            outputs = name_outputs(returned) | left
            self._form.returned = tuple(outputs)
            return {}, outputs
        loss = pick_loss(returned, self._loss)
        self._form.has_own_backward = has_own_backward(loss)
        outputs = name_outputs_beside_loss(returned, self._loss) | left
        self._form.returned = tuple(outputs)
        return {"loss": loss}, {n: tensor.detach() for n, tensor in outputs.items()}

    def _shown(self) -> dict[str, Tensor]:
        tensors = [tensor for change in self.left.changes for tensor in change.tensors]
        return {f"{LEFT}{at}": tensor for at, tensor in enumerate(tensors)}


_Tied = list[tuple[dict[str, Any], str, dict[str, Any], str]]
"""Tables of modules and names in them: of tensors under another name, and the first."""


def _tied(model: torch.nn.Module) -> _Tied:
    first: dict[int, tuple[dict[str, Any], str]] = {}
    found: _Tied = []
    for module in model.modules():
        for table in tables_of(module):
            for name, tensor in table.items():
                if tensor is None:
                    continue
                if id(tensor) in first:
                    found.append((table, name, *first[id(tensor)]))
                else:
                    first[id(tensor)] = table, name
    return found


@contextmanager
def _as_one(tied: _Tied) -> Generator[None]:
    """Within it tensors of several names are one, whatever a trace makes of each."""
    were = [table[name] for table, name, _, _ in tied]
    for table, name, other, first in tied:
        table[name] = other[first]
    try:
        yield
    finally:
        for (table, name, _, _), tensor in zip(tied, were, strict=True):
            table[name] = tensor


def _owned_buffers(
    model: torch.nn.Module,
) -> list[tuple[torch.nn.Module, str, Tensor]]:
    return [
        (module, name, buffer)
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]


def _write_back(before: list[tuple[torch.nn.Module, str, Tensor]]) -> None:
    """Turn ``self.buffer = new`` into a copy, which export sees: it loses the other.

    Raises:
        CaptureFailed: when a buffer would change its shape or dtype.
    """
    changed: list[tuple[Tensor, Tensor]] = []
    for module, name, buffer in before:
        after = getattr(module, name)
        if after is buffer or not isinstance(after, Tensor):
            continue
        if after.shape != buffer.shape or after.dtype != buffer.dtype:
            raise CaptureFailed(
                f"buffer {name!r} of {type(module).__name__} becomes {after.dtype} of "
                f"shape {list(after.shape)}, it was {buffer.dtype} of shape "
                f"{list(buffer.shape)}; a step may change only its values"
            )
        changed.append((buffer, after.detach()))
        setattr(module, name, buffer)
    # A buffer may become what another was, which is written to before it or after.
    written = {_storage(buffer) for buffer, _ in changed}
    kept = [x.clone() if _storage(x) in written else x for _, x in changed]
    for (buffer, _), after in zip(changed, kept, strict=True):
        buffer.copy_(after)


def _storage(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())
