"""Parameters that lie side by side, so that a program reads them as one tensor.

A program puts some parameters one behind another (passes/join_products.py). Here they
are views of one tensor, in that order, and what puts them there is that tensor: nothing
is copied in a step, whoever writes to a parameter writes to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx

from partita.compiler.capture.torch_private import uncompiled
from partita.compiler.ir.joined import lies_beside
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.program import (
    InputKind,
    InputRole,
    has_info,
    info,
    type_of,
    value_of,
)
from partita.compiler.ir.sbp import Placement

Row = tuple[str, ...]
"""The names of parameters that lie side by side, in order."""


def rows_of(local: LocalProgram) -> tuple[Row, ...]:
    """Return which parameters a program reads as one tensor."""
    return tuple(dict.fromkeys(row for _, row in _beside(local)))


def read_as_one(local: LocalProgram) -> LocalProgram:
    """Return ``local`` with an input in place of what puts parameters side by side."""
    beside = dict(_beside(local))
    if not beside:
        return local
    rows = {row: node for node, row in reversed(beside.items())}
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    entering = local.graph_module.graph.find_nodes(op="placeholder")
    for node in entering:
        copies[node] = graph.node_copy(node)
    inputs = {row: graph.placeholder(f"joined_{i}") for i, row in enumerate(rows)}
    for node in local.graph_module.graph.nodes:
        if node in beside:
            copies[node] = inputs[beside[node]]
        elif node.op == "output":
            graph.node_copy(node, copies.__getitem__)
        elif node.op != "placeholder":
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.lint()
    everywhere = Placement.broadcast(local.mesh.ndim)
    return replace(
        local,
        graph_module=uncompiled(local.graph_module, graph),
        inputs=(*local.inputs, *map(role_of, rows)),
        input_types=(
            *local.input_types,
            *(type_of(value_of(node)) for node in rows.values()),
        ),
        input_placements=(*local.input_placements, *(everywhere for _ in rows)),
    )


def role_of(row: Row) -> InputRole:
    """Return the role of parameters that are read as one tensor."""
    return InputRole(InputKind.JOINED, " + ".join(row))


def lay_side_by_side(
    shards: dict[str, torch.Tensor], rows: Iterable[Row], first_of: Mapping[str, str]
) -> dict[Row, torch.Tensor]:
    """Lay parameters side by side; return what each row of them is as one tensor.

    Args:
        shards: by first name; those of the rows become views.
        rows: by the names that the program has for them.
        first_of: the first of the names of a parameter, by each.
    """
    found: dict[Row, torch.Tensor] = {}
    for row in rows:
        names = [first_of[name] for name in row]
        parts = [shards.pop(name) for name in names]
        whole = found[row] = torch.cat(parts)
        sizes = [part.shape[0] for part in parts]
        del parts  # not twice
        for name, part in zip(names, whole.split(sizes), strict=True):
            shards[name] = part.data  # a write to one is no write to the others
    return found


@dataclass(frozen=True)
class PartOfRow:
    """A parameter that is a view of a row of them.

    Attributes:
        parameter: whose values a step reads in the row.
        place: where they are in it.
    """

    parameter: torch.Tensor
    place: torch.Tensor

    @classmethod
    def of(cls, parameter: torch.Tensor) -> PartOfRow:
        """Remember where in its row a parameter is."""
        return cls(parameter, parameter.data)

    def put_back(self) -> None:
        """Have the row hold the values again, if the parameter was given memory.

        ``parameter.data = ...`` does that, and so torch's ``vector_to_parameters``.
        """
        if self.parameter.data_ptr() != self.place.data_ptr():
            self.place.copy_(self.parameter.data)
            self.parameter.data = self.place


def _beside(local: LocalProgram) -> Sequence[tuple[fx.Node, Row]]:
    """Return the calls that put parameters side by side, and which."""
    entering = local.graph_module.graph.find_nodes(op="placeholder")
    names = {node: role.name for node, role in zip(entering, local.inputs, strict=True)}
    return [
        (node, tuple(names[given] for given in node.all_input_nodes))
        for node in local.graph_module.graph.nodes
        if has_info(node) and lies_beside(info(node).key)
    ]
