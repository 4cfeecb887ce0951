"""Gradients of which other ranks hold the rest: a norm of one counts all of them.

A script that clips by ``torch.nn.utils.clip_grad_norm_`` would clip on each rank by the
norm of its own shards. So these gradients know what they are. What keeps their number
of elements, as optimizers do, is as of any tensor. A norm stays open until torch joins
it with those of other gradients, which is when ranks add up theirs; any other number
made of a shard, which would be another one on each rank, is refused.

DTensor has partial norms likewise; but one that a single rank looks at is an error
here, where it would wait for the other ranks there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import torch
import torch.distributed as dist

from partita.compiler.errors import BadOptions

_NORMS = ("vector_norm", "linalg_vector_norm", "_foreach_norm")

_AS = torch.Tensor.as_subclass
_UNSCALE = "_amp_foreach_non_finite_check_and_unscale_"


@dataclass(frozen=True)
class Part:
    """What a rank's gradient is a part of.

    Attributes:
        name: the parameter's.
        is_counted: whether this rank counts it: of copies one rank does.
        is_first: whether this rank counts what all ranks have.
        is_of_stage: whether there are other stages, with gradients of their own.
    """

    name: str
    is_counted: bool
    is_first: bool
    is_of_stage: bool


class ShardGradient(torch.Tensor):
    """A gradient that is a part of the whole one."""

    part: Part

    @classmethod
    def of(cls, gradient: torch.Tensor, part: Part) -> ShardGradient:
        """Return ``gradient``, the same memory, as a part of the whole one."""
        found = gradient.as_subclass(cls)
        found.part = part
        return found

    def to_local(self) -> torch.Tensor:
        """Return this rank's part as a plain tensor, of the same memory."""
        return self.as_subclass(torch.Tensor)

    def __reduce_ex__(self, proto: Any) -> Any:
        """Pickle as a plain tensor: who reads it has no other ranks."""
        return self.to_local().__reduce_ex__(proto)

    def __deepcopy__(self, memo: dict[int, Any]) -> ShardGradient:
        """Return a copy that is such a part too."""
        return memo.setdefault(id(self), self.clone())

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run ``func``; what it makes of a part is a part, a norm of it, or refused."""
        if _name(func) == _UNSCALE:
            raise BadOptions(
                "GradScaler: each rank would look for an overflow in its own parts of "
                "gradients alone; want pt.LossScaler(program), which has all ranks skip"
            )
        if _name(func) in _NORMS:
            if not args:
                return _refuse(_name(func), "the gradient, given by a keyword,")
            args = _not_empty(args)
        found = _plainly(func, args, kwargs)
        is_of_tensors = isinstance(found, torch.Tensor | tuple | list)
        if not is_of_tensors or found is next(iter(args), None) or func is _AS:
            return found  # soon: optimizers come by here for each parameter
        given = [*args, *(kwargs or {}).values()]
        owners = [x for x in _tensors(given) if isinstance(x, ShardGradient)]
        if isinstance(found, torch.Tensor):
            return _made(func, found, owners[:1], args)
        values = list(_tensors(found))
        if not values:
            return found
        first = list(_tensors(args[:1]))
        of = first if len(first) == len(values) else owners[:1] * len(values)
        return [
            _made(func, x, [g] if isinstance(g, ShardGradient) else [], args)
            for x, g in zip(values, of, strict=True)
        ]


class ShardNorm(torch.Tensor):
    """Norms of gradients, each of this rank's part: all that may be done is join them.

    Attributes:
        counted: whether this rank counts it, by norm.
        is_first: whether this rank counts what all ranks have.
        order: of the norms.
    """

    counted: tuple[bool, ...]
    is_first: bool
    order: float

    @classmethod
    def of(
        cls,
        norm: torch.Tensor,
        counted: tuple[bool, ...],
        is_first: bool,
        order: float,
    ) -> ShardNorm:
        """Return ``norm`` as what is still to be joined."""
        found = norm.as_subclass(cls)
        found.counted, found.is_first, found.order = counted, is_first, order
        return found

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Move norms, stack them and join them; refuse all else."""
        if func is torch.Tensor.as_subclass or _name(func) == "__get__":
            return _plainly(func, args, kwargs)
        norms = list(_tensors(args))
        own = next((norm for norm in norms if isinstance(norm, ShardNorm)), None)
        if own is None:
            return _plainly(func, args, kwargs)
        if func is torch.Tensor.to:
            found = _plainly(func, args, kwargs)
            return cls.of(found, own.counted, own.is_first, own.order)
        if func is torch.stack:
            counted = [
                norm.counted[0] if isinstance(norm, ShardNorm) else own.is_first
                for norm in norms
            ]
            found = _plainly(func, args, kwargs)
            return cls.of(found, tuple(counted), own.is_first, own.order)
        if _name(func) in _NORMS and _order(args, kwargs) == own.order:
            local = own.as_subclass(torch.Tensor)
            counts = torch.tensor(own.counted, device=local.device)
            joined = torch.linalg.vector_norm(local * counts, own.order)
            return over_all_ranks(joined, own.order).to(local.dtype)
        return _refuse(_name(func), "the norm of a gradient")


def over_all_ranks(norm: torch.Tensor, order: float) -> torch.Tensor:
    """Return, in double precision, the norm of what ``norm`` is of on all ranks.

    All ranks call it together.

    Raises:
        BadOptions: for an order below 1.
    """
    check_order(order)
    total = norm.double()
    if math.isinf(order):
        dist.all_reduce(total, dist.ReduceOp.MAX)
        return total
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


def _made(
    func: Callable[..., Any],
    value: torch.Tensor,
    owners: Sequence[ShardGradient],
    args: Sequence[Any],
) -> torch.Tensor:
    """Return what ``func`` made of a gradient, as what it is."""
    if not owners or any(value is argument for argument in _tensors(args)):
        return value  # it was written to
    (owner,) = owners
    is_norm = value.ndim == 0 and _name(func) in _NORMS
    if is_norm and not owner.part.is_of_stage:
        counted, order = (owner.part.is_counted,), _order(args, None)
        return ShardNorm.of(value, counted, owner.part.is_first, order)
    is_number = is_norm or (value.ndim == 0 and owner.ndim > 0)
    if value.numel() == owner.numel() and not is_number:
        return ShardGradient.of(value, owner.part)
    memory = owner.untyped_storage().data_ptr()
    if value.numel() > owner.numel() or value.untyped_storage().data_ptr() == memory:
        return value  # elements that were asked for by their place here
    return _refuse(_name(func), f"the gradient of {owner.part.name!r}")


def _refuse(function: str, what: str) -> NoReturn:
    raise BadOptions(
        f"{function}: {what} is this rank's part of it; want "
        "program.clip_grad_norm_(max_norm), which counts all ranks and returns the "
        "norm, or .to_local() of the gradient for what is here"
    )


def _not_empty(args: Sequence[Any]) -> Sequence[Any]:
    """Return the arguments of a norm with a zero for what has no elements here."""

    def filled(x: torch.Tensor) -> torch.Tensor:
        if not isinstance(x, ShardGradient) or x.numel():
            return x
        return ShardGradient.of(torch.zeros(1, dtype=x.dtype, device=x.device), x.part)

    first, *rest = args
    if isinstance(first, torch.Tensor):
        return filled(first), *rest
    return [filled(x) for x in _tensors(first)], *rest


def _order(args: Sequence[Any], kwargs: dict[str, Any] | None) -> float:
    given = args[1] if len(args) > 1 else (kwargs or {}).get("ord", 2.0)
    return float(given)


def _plainly(
    func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any] | None
) -> Any:
    """Return what ``func`` makes of tensors as torch knows them."""
    return torch.Tensor.__torch_function__(func, (), tuple(args), kwargs or {})


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a value, lists and tuples of them included."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, tuple | list):
        for value in cast(Sequence[Any], values):
            yield from _tensors(value)


def _name(func: Callable[..., Any]) -> str:
    return getattr(func, "__name__", "")
