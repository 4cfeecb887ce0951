"""Gradients of which other ranks hold the rest: torch's norm of all counts all ranks.

A script that clips by ``torch.nn.utils.clip_grad_norm_`` would clip on each rank by the
norm of its own shards. So these gradients know what they are until an optimizer steps:
where torch joins their norms into one, ranks add up theirs. For all else they are plain
tensors, with what this rank has.

DTensor has partial norms likewise. As there, all ranks have to join theirs together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist

from partita.compiler.errors import BadOptions
from partita.runtime.by_itself import check_together
from partita.runtime.extremes import over_ranks
from partita.runtime.marked_tensor import MarkedTensor, plainly

_NORMS = ("vector_norm", "linalg_vector_norm", "_foreach_norm")

_UNSCALE = "_amp_foreach_non_finite_check_and_unscale_"


@dataclass(frozen=True)
class Part:
    """What a rank's gradient is a part of.

    Attributes:
        is_counted: whether this rank counts it: of copies one rank does.
        is_first: whether this rank counts what all ranks have.
        is_of_stage: whether there are other stages, with gradients of their own.
    """

    is_counted: bool
    is_first: bool
    is_of_stage: bool


class ShardGradient(MarkedTensor):
    """A gradient that is a part of the whole one."""

    part: Part

    @classmethod
    def of(cls, gradient: torch.Tensor, part: Part) -> ShardGradient:
        """Return ``gradient``, the same memory, as a part of the whole one."""
        found = gradient.as_subclass(cls)
        found.part = part
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        """Return a plain copy."""
        return memo.setdefault(id(self), self.plain().clone())

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run ``func``; the norms that torch takes of gradients know what they are of.

        Raises:
            BadOptions: where ``GradScaler`` looks for an overflow.
        """
        if _name(func) == _UNSCALE:
            raise BadOptions(
                "GradScaler: each rank would look for an overflow in its own parts of "
                "gradients alone; want pt.LossScaler(program), which has all ranks skip"
            )
        if _name(func) not in _NORMS or not args:
            return plainly(func, args, kwargs)
        order = _order(args, kwargs)
        if isinstance(args[0], torch.Tensor):
            found = plainly(func, (_not_empty(args[0]), *args[1:]), kwargs)
            return _norm(found, args[0], order)
        gradients = list(_tensors(args[0]))
        filled = [_not_empty(gradient) for gradient in gradients]
        norms = plainly(func, (filled, *args[1:]), kwargs)
        pairs = zip(norms, gradients, strict=True)
        return tuple([_norm(norm, gradient, order) for norm, gradient in pairs])


class ShardNorm(MarkedTensor):
    """Norms of gradients, each of this rank's part, that know how they are joined.

    Attributes:
        counted: whether this rank counts it, by norm.
        part: what one of the gradients is a part of.
        order: of the norms.
    """

    counted: tuple[bool, ...]
    part: Part
    order: float

    @classmethod
    def of(
        cls, norm: torch.Tensor, counted: tuple[bool, ...], part: Part, order: float
    ) -> ShardNorm:
        """Return ``norm`` as what is still to be joined."""
        found = norm.as_subclass(cls)
        found.counted, found.part, found.order = counted, part, order
        return found

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run ``func``; norms are moved and stacked as norms, and joined on all ranks.

        Raises:
            BadOptions: where they are joined, and other stages have gradients too.
        """
        norms = list(_tensors(args))
        own = next((norm for norm in norms if isinstance(norm, ShardNorm)), None)
        if own is not None and func is torch.Tensor.to:
            return cls.of(plainly(func, args, kwargs), own.counted, own.part, own.order)
        if own is not None and func is torch.stack:
            counted = [
                norm.counted[0] if isinstance(norm, ShardNorm) else own.part.is_first
                for norm in norms
            ]
            found = plainly(func, args, kwargs)
            return cls.of(found, tuple(counted), own.part, own.order)
        if own is None or _name(func) not in _NORMS:
            return plainly(func, args, kwargs)
        local = own.plain()
        if local.ndim != 1 or _order(args, kwargs) != own.order:
            return plainly(func, args, kwargs)
        if own.part.is_of_stage:
            raise BadOptions(
                "norm of gradients: other stages of the pipeline have gradients too; "
                "want program.clip_grad_norm_(max_norm), which counts all ranks and "
                "returns the norm"
            )
        counts = torch.tensor(own.counted, device=local.device)
        joined = torch.linalg.vector_norm(local * counts, own.order)
        return over_all_ranks(joined, own.order).to(local.dtype)


def over_all_ranks(norm: torch.Tensor, order: float) -> torch.Tensor:
    """Return, in double precision, the norm of what ``norm`` is of on all ranks.

    All ranks call it together.

    Raises:
        BadOptions: for an order below 1, or where a rank is by itself.
    """
    check_order(order)
    check_together("the norm of all gradients")
    total = norm.double()
    if math.isinf(order):
        return over_ranks(total, "max", partial(dist.all_reduce, op=dist.ReduceOp.MAX))
    total = total**order
    dist.all_reduce(total)
    return total ** (1 / order)


def check_order(order: float) -> None:
    """Check that norms of an order can be joined.

    Raises:
        BadOptions: where it is below 1.
    """
    if order < 1:
        raise BadOptions(f"norm_type is {order}; want 1 or more, or infinity")


def _norm(norm: torch.Tensor, gradient: torch.Tensor, order: float) -> torch.Tensor:
    """Return the norm of a gradient, as what it is."""
    if not isinstance(gradient, ShardGradient) or norm.ndim:
        return norm
    return ShardNorm.of(norm, (gradient.part.is_counted,), gradient.part, order)


def _not_empty(gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient, or a zero in place of one without elements here."""
    return gradient if gradient.numel() else gradient.new_zeros(1)


def _order(args: Sequence[Any], kwargs: dict[str, Any] | None) -> float:
    given = args[1] if len(args) > 1 else (kwargs or {}).get("ord", 2.0)
    return float(given)


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a value, lists and tuples of them included."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, tuple | list):
        for value in cast(Sequence[Any], values):
            yield from _tensors(value)


def _name(func: Callable[..., Any]) -> str:
    return getattr(func, "__name__", "")
