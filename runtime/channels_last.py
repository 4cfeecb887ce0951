"""Lay out what convolutions take by channels, as their kernels want it.

A batch of images comes with the pixels of a channel together. Kernels of convolutions
are faster where the channels of a pixel are, and elsewhere copy what they are given.
Inductor knows that of a forward by itself. What a gradient of a convolution takes, it
lays out as the graph says, which here is traced together with the forward, from the
images on: so each tensor between two convolutions would be copied, once in either
direction. Laid out by the graph itself, from the images and weights on, none is.

What leaves the program, and what ops take that are not torch's own, is as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import fx
from torch.fx.node import Argument, map_arg

from partita.compiler.capture.torch_private import (
    FakeMode,
    prefers_channels_last,
    uncompiled,
)
from partita.runtime.flat_graph import note_types

aten = torch.ops.aten

_TENSORS = {
    aten.convolution.default: (0, 1),
    aten.convolution_backward.default: (0, 1, 2),
}
"""By op, which of its arguments are images and weights."""

_BY_STRIDES = frozenset({aten.as_strided.default, aten.view.default})


def by_channels(
    module: fx.GraphModule,
    inputs: Sequence[torch.Tensor],
    mode: FakeMode,
    stays: Sequence[bool],
) -> fx.GraphModule:
    """Return a graph with what convolutions take laid out by channels, if that pays.

    Args:
        module: a graph of ops on tensors alone.
        inputs: of ``mode``; what is returned is right for their shapes and strides.
        mode: in which tensors have no values.
        stays: by output, whether it is to be laid out as it was.
    """
    if not any(node.target in _TENSORS for node in module.graph.nodes):
        return module
    with torch.no_grad():
        note_types(module, inputs, mode)
        if not prefers_channels_last(module):
            return module
        with mode:
            return uncompiled(module, _Writer(module, stays).write(inputs))


class _Writer:
    def __init__(self, module: fx.GraphModule, stays: Sequence[bool]) -> None:
        self.module = module
        self.stays = stays
        self.graph = fx.Graph()
        self.values: dict[fx.Node, Any] = {}  # of the new nodes
        self.new: dict[fx.Node, fx.Node] = {}
        self.laid_out: dict[tuple[fx.Node, torch.memory_format], fx.Node] = {}

    def write(self, inputs: Sequence[torch.Tensor]) -> fx.Graph:
        entering = iter(inputs)
        for node in self.module.graph.nodes:
            if node.op == "output":
                self._leave(node)
                continue
            copy = self.graph.node_copy(node, self._given(node).__getitem__)
            self.values[copy] = self._made(copy, entering)
            self.new[node] = copy
        self.graph.lint()
        return self.graph

    def _made(self, node: fx.Node, entering: Iterator[torch.Tensor]) -> Any:
        if node.op == "placeholder":
            return next(entering)
        args, kwargs = map_arg((node.args, node.kwargs), self.values.__getitem__)
        run = cast(Callable[..., Any], node.target)
        return run(*cast(Sequence[Any], args), **cast(dict[str, Any], kwargs))

    def _given(self, node: fx.Node) -> dict[fx.Node, fx.Node]:
        """Return what stands for each node that another takes."""
        wanted = [node.args[at] for at in _TENSORS.get(cast(Any, node.target), ())]
        return {
            each: self._by_channels(each)
            if each in wanted
            else self._as_it_was(each)
            if _asks_for_strides(node)
            else self.new[each]
            for each in node.all_input_nodes
        }

    def _leave(self, node: fx.Node) -> None:
        (returned,) = node.args
        assert isinstance(returned, list | tuple)
        found: list[Argument] = []
        for value, stays in zip(returned, self.stays, strict=True):
            if isinstance(value, fx.Node):
                value = self._as_it_was(value) if stays else self.new[value]
            found.append(value)
        self.graph.output(found)

    def _by_channels(self, node: fx.Node) -> fx.Node:
        new = self.new[node]
        value, form = self.values[new], torch.channels_last
        if value.ndim != 4 or value.is_contiguous(memory_format=form):
            return new
        return self._copied(new, form)

    def _as_it_was(self, node: fx.Node) -> fx.Node:
        new, before = self.new[node], node.meta.get("val")
        if not isinstance(before, torch.Tensor):
            return new
        is_same = self.values[new].stride() == before.stride()
        if is_same or not before.is_contiguous():
            return new
        return self._copied(new, torch.contiguous_format)

    def _copied(self, new: fx.Node, form: torch.memory_format) -> fx.Node:
        """Return the one copy of what a node makes that is laid out so."""
        found = self.laid_out.get((new, form))
        if found is None:
            found = self.graph.call_function(
                aten.clone.default, (new,), {"memory_format": form}
            )
            self.values[found] = self.values[new].clone(memory_format=form)
            self.laid_out[new, form] = found
        return found


def _asks_for_strides(node: fx.Node) -> bool:
    """Whether an op works on memory, or is not torch's own."""
    if node.op != "call_function" or node.target in _BY_STRIDES:
        return True
    space = getattr(node.target, "namespace", "aten")
    return space not in ("aten", "prims")
