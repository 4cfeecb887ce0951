"""The loss of connectionist temporal classification as one op of fixed shapes.

aten's ``_ctc_loss`` also returns what its backward needs, of a size that goes by the
longest target: a shape that depends on values. This op returns the loss of each sample
alone, and its backward computes the rest again. Samples know nothing of each other.
Targets that a mask picks out of padded ones stay in their rows (``masked_select``).

Shapes: log-probabilities ``[t, b, c]``, targets ``[b, s]``, or those of all samples one
behind the other, ``[s]``; lengths ``[b]``. Graves, Fernandez, Gomez, Schmidhuber,
"Connectionist Temporal Classification", ICML 2006, section 4.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from partita.compiler.capture.torch_private import pytree

aten = torch.ops.aten

_HALF = (torch.float16, torch.bfloat16)


def ctc_losses(
    scores: Tensor,
    targets: Tensor,
    lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    drops_infinity: bool,
) -> Tensor:
    """Return the loss of each sample, infinite where its target is too long."""
    given = (scores, targets, lengths, target_lengths, blank, drops_infinity)
    return aten._ctc_loss.Tensor(*given)[0]


losses = torch.library.custom_op("partita::ctc_loss", ctc_losses, mutates_args=())


@losses.register_fake
def _losses_type(
    scores: Tensor,
    targets: Tensor,
    lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    drops_infinity: bool,
) -> Tensor:
    return scores.new_empty(scores.shape[1])


def ctc_losses_backward(
    grad: Tensor,
    scores: Tensor,
    targets: Tensor,
    lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    drops_infinity: bool,
) -> Tensor:
    """Return the gradient of the log-probabilities."""
    given = (scores, targets, lengths, target_lengths)
    made, paths = aten._ctc_loss.Tensor(*given, blank, drops_infinity)
    found = aten._ctc_loss_backward.Tensor(
        grad, *given, made, paths, blank, drops_infinity
    )
    return found.contiguous()


losses_backward = torch.library.custom_op(
    "partita::ctc_loss_backward", ctc_losses_backward, mutates_args=()
)


@losses_backward.register_fake
def _losses_backward_type(
    grad: Tensor,
    scores: Tensor,
    targets: Tensor,
    lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    drops_infinity: bool,
) -> Tensor:
    return scores.new_empty(scores.shape)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.blank, ctx.drops_infinity = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    made = losses_backward(grad, *ctx.saved_tensors, ctx.blank, ctx.drops_infinity)
    return (made, *(None,) * 5)


losses.register_autograd(_differentiate, setup_context=_save_for_backward)

_REDUCTIONS = ("none", "mean", "sum")


@dataclass(frozen=True)
class Picked:
    """What a mask picks out of rows of integers: to a loss the rows, else one row.

    That one is torch's, as long as the values of the mask say.
    """

    rows: Tensor
    mask: Tensor

    def in_rows(self) -> Tensor:
        """Return the rows, what is picked of each in front, in its order."""
        order = self.mask.logical_not().byte().argsort(dim=1, stable=True)
        return self.rows.gather(1, order)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run ``func`` on what torch makes of it."""
        made: Any = pytree.tree_map_only(cls, cls._selected, (args, kwargs or {}))
        return func(*made[0], **made[1])

    def __getattr__(self, name: str) -> Any:
        """Return what a tensor has there."""
        return getattr(self._selected(), name)

    def _selected(self) -> Tensor:
        return aten.masked_select.default(self.rows, self.mask)


def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """Return what ``mask`` picks out of ``input``, where that is rows to a loss too."""
    is_of_rows = input.ndim == 2 and input.shape == mask.shape
    if is_of_rows and not input.dtype.is_floating_point:
        return cast(Tensor, Picked(input, mask))
    return torch.masked_select(input, mask)


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor | Picked,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    blank: int = 0,
    reduction: str | int = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Compute ``torch.nn.functional.ctc_loss`` by the op: a mean divides by lengths."""
    is_batched = log_probs.ndim == 3
    told = None
    if isinstance(targets, Picked):
        told, targets = targets.mask.sum(1), targets.in_rows()
    if not is_batched:
        log_probs, targets = log_probs.unsqueeze(1), targets.reshape(1, -1)
    if log_probs.dtype in _HALF:  # as autocast has it
        log_probs = log_probs.float()
    lengths, sizes = (
        torch.as_tensor(given, device=log_probs.device).reshape(-1)
        for given in (input_lengths, target_lengths)
    )
    targets = targets.to(log_probs.device, torch.int64)
    made = losses(log_probs, targets, lengths, sizes, blank, zero_infinity)
    if told is not None:  # in one row, others would be taken where these differ
        made = torch.where(sizes == told, made, float("nan"))
    if zero_infinity:
        made = torch.where(made == float("inf"), 0.0, made)
    how = _REDUCTIONS[reduction] if isinstance(reduction, int) else reduction
    if how == "mean":
        return (made / sizes.clamp(min=1).to(made.dtype)).mean()
    if how == "sum":
        return made.sum()
    return made if is_batched else made.squeeze(0)
