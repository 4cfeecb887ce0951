"""Run one rank's program eagerly, its groups and its device bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import fx
from torch.fx.node import map_aggregate

from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.program import OutputKind
from partita.runtime.collectives import is_collective
from partita.runtime.feeds import FeedKey, Feeds, arguments, own_feeds
from partita.runtime.groups import Groups

Outputs = tuple[torch.Tensor | None, ...]


@dataclass(frozen=True)
class Executable:
    """A local program that can run here; ``own`` holds what it brings itself."""

    local: LocalProgram
    own: Mapping[FeedKey, torch.Tensor | int]

    def run(self, feeds: Feeds) -> Outputs:
        """Run on local values; return the local outputs in the order of their roles."""
        values = arguments(self.local, feeds, self.own)
        with torch.no_grad():
            return cast(Outputs, tuple(self.local.graph_module.forward(*values)))


def bind_program(local: LocalProgram, groups: Groups) -> Executable:
    """Return ``local`` with real group names, its tensors made on the run's device."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(local.graph_module.graph, val_map={}))
    for node in graph.nodes:
        if is_collective(node):
            *args, group = node.args
            node.args = (*args, groups.names[cast(str, group)])
        else:
            node.args, node.kwargs = map_aggregate(
                (node.args, node.kwargs),
                lambda leaf: groups.device if isinstance(leaf, torch.device) else leaf,
            )
    module = fx.GraphModule(local.graph_module, graph)
    return Executable(
        replace(local, graph_module=module), own_feeds(local, groups.device)
    )


def only(local: LocalProgram, kinds: tuple[OutputKind, ...]) -> LocalProgram:
    """Return ``local`` with the outputs of these kinds and what they need alone.

    The same collectives fall away on every rank, since a value that leaves is needed
    on all ranks or on none.
    """
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    results = cast(
        tuple[fx.Node | None, ...], graph.graph_copy(local.graph_module.graph, values)
    )
    kept = [i for i, role in enumerate(local.outputs) if role.kind in kinds]
    graph.output(tuple(results[i] for i in kept))
    for node in reversed(graph.nodes):
        if node.op not in ("placeholder", "output") and not node.users:
            graph.erase_node(node)
    return replace(
        local,
        graph_module=fx.GraphModule(local.graph_module, graph),
        outputs=tuple(local.outputs[i] for i in kept),
        output_types=tuple(local.output_types[i] for i in kept),
        output_placements=tuple(local.output_placements[i] for i in kept),
    )
