"""The functional collectives: reading a call off a graph, and what a call computes.

``complete`` is the meaning of each collective over the tensors of all members, in
one process; the real ones run under the same names in ``torch.distributed``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce

import torch
from torch import fx

from partita.compiler.ir.tensor_type import TensorType

_REDUCTIONS = {
    "sum": torch.add,
    "avg": torch.add,  # divided in the end
    "max": torch.maximum,
    "min": torch.minimum,
    "product": torch.mul,
}


@dataclass(frozen=True, slots=True)
class Call:
    """One rank's call of a collective.

    ``reduction`` and the split sizes are empty where the collective has none;
    ``group_size`` is 0 where the call does not name it.
    """

    op: str
    group: str
    tensor: torch.Tensor
    reduction: str = ""
    group_size: int = 0
    input_splits: tuple[int, ...] = ()
    output_splits: tuple[int, ...] = ()

    def __str__(self) -> str:
        kind = f"{self.op}({self.reduction})" if self.reduction else self.op
        return f"{kind} of {TensorType(tuple(self.tensor.shape), self.tensor.dtype)}"


def is_wait(node: fx.Node) -> bool:
    """Whether ``node`` waits for the result of a collective."""
    return _name(node) == "wait_tensor"


def is_collective(node: fx.Node) -> bool:
    """Whether ``node`` calls a functional collective."""
    return _name(node) not in ("", "wait_tensor")


def _name(node: fx.Node) -> str:
    """Return ``all_reduce`` and the like, "" for what is no functional collective."""
    return _name_of(node.target) if node.op == "call_function" else ""


@lru_cache(maxsize=1 << 10)
def _name_of(target: object) -> str:
    namespace, _, rest = str(target).partition(".")
    return rest.removesuffix(".default") if namespace == "_c10d_functional" else ""


def read_call(node: fx.Node, args: tuple[object, ...]) -> Call:
    """Return the call that ``node`` makes with these (evaluated) arguments."""
    match _name(node), args:
        case (
            "all_reduce" | "all_reduce_",
            (torch.Tensor() as x, str(reduction), str(group)),
        ):
            return Call("all_reduce", group, x, reduction.lower())
        case "all_gather_into_tensor", (torch.Tensor() as x, int(size), str(group)):
            return Call("all_gather_into_tensor", group, x, group_size=size)
        case (
            "reduce_scatter_tensor",
            (torch.Tensor() as x, str(reduction), int(size), str(group)),
        ):
            kind = reduction.lower()
            return Call("reduce_scatter_tensor", group, x, kind, group_size=size)
        case "all_to_all_single", (
            torch.Tensor() as x,
            list(out),
            list(into),
            str(group),
        ):
            call = Call("all_to_all_single", group, x)
            return replace(call, input_splits=tuple(into), output_splits=tuple(out))
        case name, _:
            raise NotImplementedError(f"collective {name} with arguments {args}")


def disagreement(calls: Sequence[Call]) -> str:
    """Return what is wrong with the calls of a group's members; "" when nothing is.

    * one op, one reduction, one dtype
    * shapes are equal, beyond dim 0 for an all-to-all
    * the group has the size that each call names, and divides what is scattered
    * what one rank sends to another is what that one receives
    """
    first, num = calls[0], len(calls)
    free = first.op == "all_to_all_single"
    for call in calls:
        if (call.op, call.reduction) != (first.op, first.reduction):
            return "the ops differ"
        if call.tensor.dtype != first.tensor.dtype:
            return "the dtypes differ"
        if call.tensor.shape[free:] != first.tensor.shape[free:]:
            return "the shapes differ"
        if call.group_size not in (0, num):
            return f"a call names a group of {call.group_size}; there are {num} ranks"
    if first.op == "reduce_scatter_tensor" and first.tensor.shape[0] % num:
        return f"dim 0 does not divide by {num}"
    if not free:
        return ""
    for call in calls:
        into, out = _splits(call, num)
        if len(into) != num or len(out) != num or sum(into) != call.tensor.shape[0]:
            return f"the split sizes {into} -> {out} do not fit"
    for i, sender in enumerate(calls):
        for j, receiver in enumerate(calls):
            sent, taken = _splits(sender, num)[0][j], _splits(receiver, num)[1][i]
            if sent != taken:
                return f"member {i} sends {sent} to member {j}, which takes {taken}"
    return ""


def _splits(call: Call, num: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return what a member sends to and takes from each; empty means even."""
    even = (call.tensor.shape[0] // num,) * num
    return call.input_splits or even, call.output_splits or even


def complete(calls: Sequence[Call]) -> list[torch.Tensor]:
    """Return each member's result; equal results are one tensor, shared."""
    num = len(calls)
    tensors = [call.tensor for call in calls]
    match calls[0].op:
        case "all_reduce":
            return [_reduce(tensors, calls[0].reduction)] * num
        case "all_gather_into_tensor":
            return [torch.cat([_at_least_1d(x) for x in tensors])] * num
        case "reduce_scatter_tensor":
            whole = _reduce(tensors, calls[0].reduction)
            return [part.clone() for part in whole.chunk(num)]
        case _:
            sent = [
                x.split(_splits(c, num)[0]) for x, c in zip(tensors, calls, strict=True)
            ]
            return [torch.cat([parts[i] for parts in sent]) for i in range(num)]


def _at_least_1d(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(1) if x.ndim == 0 else x


def _reduce(tensors: Sequence[torch.Tensor], reduction: str) -> torch.Tensor:
    if len(tensors) == 1:
        return tensors[0].clone()
    total = reduce(_REDUCTIONS[reduction], tensors)
    return total / len(tensors) if reduction == "avg" else total
