"""Compute parts of a program on real values, to see what they are.

Much of such parts repeats: positions are spread over a batch, masks over heads. What is
equal along a dim is computed once and has stride 0 there.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import torch
from torch import Tensor, fx

from partita.compiler.capture.schemas import may_share_memory
from partita.compiler.capture.torch_private import pytree
from partita.compiler.ir.program import InputKind, Program, info

_MOST_ELEMENTS = 1 << 28
"""Larger tensors are not made: a mask of 16k positions by as many is as large."""


class TooLarge(Exception):
    """An excerpt would have to make a tensor that is too large to look at."""


@dataclass(frozen=True)
class Excerpt:
    """The calls that compute ``result`` from ``given`` and constants, in order."""

    result: fx.Node
    given: tuple[fx.Node, ...]
    constants: dict[fx.Node, Tensor]
    calls: tuple[fx.Node, ...]

    @classmethod
    def of(
        cls, program: Program, result: fx.Node, given: tuple[fx.Node, ...] = ()
    ) -> Excerpt | None:
        """Return the part of ``program``; ``None`` where more than that enters it."""
        constants = {
            node: program.constants[role.name]
            for node, role in program.placeholders()
            if role.kind is InputKind.CONSTANT
        }
        known: dict[fx.Node, None] = dict.fromkeys((*given, *constants))
        calls: dict[fx.Node, None] = {}
        open_nodes = [result]
        while open_nodes:
            node = open_nodes[-1]
            if node in calls or node in known:
                open_nodes.pop()
            elif node.op != "call_function":
                return None
            elif left := [
                n for n in node.all_input_nodes if n not in calls and n not in known
            ]:
                open_nodes += left
            else:
                calls[node] = None
        return cls(result, given, constants, tuple(calls))

    @property
    def key(self) -> str:
        """What parts have equal that compute the same."""
        names: dict[fx.Node, str] = {n: f"given{i}" for i, n in enumerate(self.given)}
        names |= {node: f"call{i}" for i, node in enumerate(self.calls)}

        def name(node: fx.Node) -> str:
            return names.get(node, node.name)

        written = [
            (str(node.target), fx.map_arg((node.args, node.kwargs), name))
            for node in self.calls
        ]
        return f"{written} -> {name(self.result)}"

    def __call__(self, *given: Tensor) -> Tensor:
        """Compute the result.

        Raises:
            TooLarge: rather than fill the memory.
        """
        values: dict[fx.Node, Any] = {**self.constants}
        values.update(zip(self.given, given, strict=True))
        last_use = {used: call for call in self.calls for used in call.all_input_nodes}
        for node in self.calls:
            args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = _computed(node, args, kwargs)
            for used in node.all_input_nodes:
                if last_use[used] is node:
                    values.pop(used, None)
        return values[self.result]


def _computed(node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Compute one call, once along dims in which all of its operands repeat."""
    function = cast("Callable[..., Any]", node.target)
    if function is operator.getitem:  # one of several results
        return function(*args)
    if torch.Tag.pointwise not in getattr(function, "tags", ()):
        if not may_share_memory(function):
            _check_sizes(*(type_.shape for type_ in info(node).types if type_))
        return pytree.tree_map_only(Tensor, _spread, function(*args, **kwargs))
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
    repeated = [
        dim
        for dim in range(-len(shape), 0)
        if all(_repeats(tensor, dim) for tensor in tensors)
    ]
    once = [_once(arg, repeated) if isinstance(arg, Tensor) else arg for arg in args]
    dims = zip(range(-len(shape), 0), shape, strict=True)
    _check_sizes([size for dim, size in dims if dim not in repeated])
    return function(*once, **kwargs).expand(shape)


def _check_sizes(*shapes: Sequence[int]) -> None:
    for shape in shapes:
        if prod(shape) > _MOST_ELEMENTS:
            raise TooLarge(f"a tensor of sizes {list(shape)}")


def _repeats(tensor: Tensor, dim: int) -> bool:
    """Whether a tensor that is spread over more is the same along a dim of that."""
    return tensor.ndim < -dim or tensor.shape[dim] == 1 or tensor.stride(dim) == 0


def _once(tensor: Tensor, dims: Sequence[int]) -> Tensor:
    """Return the first along dims in which a tensor repeats."""
    for dim in dims:
        if tensor.ndim >= -dim and tensor.shape[dim]:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _spread(tensor: Tensor) -> Tensor:
    """Return a tensor with stride 0 along the dims in which it is equal."""
    dims = range(-tensor.ndim, 0)
    once = _once(tensor, [dim for dim in dims if _repeats(tensor, dim)])
    for dim in dims:
        first = _once(once, [dim])
        if once.shape[dim] > 1 and bool((once == first).all()):
            once = first
    return once.expand(tensor.shape)
