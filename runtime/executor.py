"""Run one rank's program, its groups and its device bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import torch
from torch import fx

from partita.compiler.capture.torch_private import (
    below_autograd,
    take_from_list,
    uncompiled,
)
from partita.compiler.ir.boxing import is_of_boxing
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.on_device import on_device
from partita.compiler.ir.program import OutputKind, OutputRole, has_info, info
from partita.runtime.collectives import is_collective
from partita.runtime.compilation import Compilation
from partita.runtime.compiled_region import CompiledRegion
from partita.runtime.extremes import keep_nan
from partita.runtime.feeds import FeedKey, OwnFeeds, arguments, own_feeds
from partita.runtime.groups import Groups
from partita.runtime.unaligned_products import multiply_by_columns
from partita.runtime.where import say_where

Values = tuple[torch.Tensor | None, ...]

Outputs = Mapping[OutputRole, torch.Tensor | None]
"""What a program made, by what it stands for."""

Made = Iterable[tuple[OutputRole, torch.Tensor | None]]
"""The same, one after the other, once."""


@dataclass(frozen=True)
class Executable:
    """A local program that can run here; ``own`` holds what it brings itself."""

    local: LocalProgram
    own: Mapping[FeedKey, torch.Tensor | int]

    def run(self, feeds: OwnFeeds) -> Values:
        """Run on local values; return the local outputs in the order of their roles.

        ``feeds`` is left empty: what nobody else holds goes with its last use.
        """
        values = arguments(self.local, feeds, self.own)
        feeds.clear()
        with torch.no_grad(), below_autograd():
            return self.compute(values)

    def compute(self, values: list[torch.Tensor | int]) -> Values:
        """Run on the values of the program's inputs, in order; leave none there."""
        try:
            return tuple(self._forward(values))
        except Exception as error:
            say_where(error, self.local.graph_module)
            raise

    @cached_property
    def _forward(self) -> Callable[[list[torch.Tensor | int]], Values]:
        module = self.local.graph_module
        take_from_list(module)
        return cast(Callable[[list[torch.Tensor | int]], Values], module.forward)

    def made(self, feeds: OwnFeeds) -> Made:
        """Run as ``run`` does; return the outputs with their roles."""
        return zip(self.local.outputs, self.run(feeds), strict=True)

    def by_role(self, feeds: OwnFeeds) -> dict[OutputRole, torch.Tensor | None]:
        """Run as ``run`` does; return the outputs by their roles."""
        return dict(self.made(feeds))


def bind_program(
    local: LocalProgram,
    groups: Groups,
    own: Mapping[FeedKey, torch.Tensor | int] | None = None,
    compilation: Compilation = Compilation.REGIONS,
) -> Executable:
    """Return ``local`` with real group names, its tensors made on the run's device.

    ``own`` is what it brings itself, where that has been made already. Of what
    ``compilation`` asks for, this has fused regions compiled when they first run; a
    program is compiled as a whole by ``compile_together``, when nothing more is to be
    taken from it.
    """
    module = on_device(local.graph_module, groups.device)
    for node in module.graph.nodes:
        if is_collective(node):
            *args, group = node.args
            node.args = (*args, groups.names[cast(str, group)])
    if groups.device.type == "cpu":
        keep_nan(module.graph)
        if not compilation.is_whole:
            multiply_by_columns(module.graph)
    module.recompile()
    if compilation is Compilation.REGIONS:
        for region in module.children():
            assert isinstance(region, fx.GraphModule)
            region.forward = CompiledRegion(region)
    brought = own_feeds(local, groups.device) if own is None else own
    return Executable(replace(local, graph_module=module), brought)


def without_outputs(local: LocalProgram) -> LocalProgram:
    """Return ``local`` without the model's outputs that leave as they are made.

    A step hands none of them over, and lets go of them with their last use. What is
    boxed to leave stays there: the plan counts its message, and that it is held.
    """
    graph, results = _copied(local)
    leaving = zip(local.outputs, results, strict=True)
    kept = [
        position
        for position, (role, made) in enumerate(leaving)
        if role.kind is not OutputKind.OUTPUT or _is_boxed(made)
    ]
    graph.output(tuple(results[i] for i in kept))
    return _with_outputs(local, graph, kept)


def _is_boxed(made: fx.Node | None) -> bool:
    return made is not None and has_info(made) and is_of_boxing(info(made).key)


def only(local: LocalProgram, kinds: tuple[OutputKind, ...]) -> LocalProgram:
    """Return ``local`` with the outputs of these kinds and what they need alone.

    The same collectives fall away on every rank, since a value that leaves is needed
    on all ranks or on none.
    """
    graph, results = _copied(local)
    kept = [i for i, role in enumerate(local.outputs) if role.kind in kinds]
    graph.output(tuple(results[i] for i in kept))
    for node in reversed(graph.nodes):
        if node.op not in ("placeholder", "output") and not node.users:
            graph.erase_node(node)
    return _with_outputs(local, graph, kept)


def _copied(local: LocalProgram) -> tuple[fx.Graph, tuple[fx.Node | None, ...]]:
    """Return a copy of a program's graph that nothing leaves yet, and what may."""
    graph, values = fx.Graph(), dict[fx.Node, fx.Node]()
    left = graph.graph_copy(local.graph_module.graph, values)
    return graph, cast(tuple[fx.Node | None, ...], left)


def _with_outputs(
    local: LocalProgram, graph: fx.Graph, kept: Sequence[int]
) -> LocalProgram:
    """Return a program of another graph, which some of its outputs leave."""
    return replace(
        local,
        graph_module=uncompiled(local.graph_module, graph),
        outputs=tuple(local.outputs[i] for i in kept),
        output_types=tuple(local.output_types[i] for i in kept),
        output_placements=tuple(local.output_placements[i] for i in kept),
        in_time=replace(
            local.in_time,
            joins=tuple(local.in_time.joins[i] for i in kept if local.in_time.joins),
        ),
    )
