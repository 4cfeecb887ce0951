"""How long each tensor of the logical program is held, and how much of it by a rank.

What a search needs before boxings are known: positions in the program's own order, and
bytes per placement. memory.py has the exact answer for a plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from partita.compiler.capture.torch_private import may_share_memory
from partita.compiler.ir.layout import largest_shard_numel
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import (
    Program,
    Value,
    info,
    operands,
    value_of,
)
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType


@dataclass(frozen=True, slots=True)
class Lifetime:
    """From the call that makes a tensor to the last that uses it, or a view of it.

    Positions count ``program.calls()`` from 0; what enters is there from -1 on, what
    leaves is held to the number of calls. ``owner`` is the tensor whose memory it may
    be: itself, unless its op can return a view.
    """

    first: int
    last: int
    owner: Value


def held_bytes(type: TensorType, placement: Placement, mesh: Mesh) -> int:
    """Return the bytes of a tensor on the rank that holds most of it.

    >>> x = TensorType.parse("f32[6, 4]")
    >>> held_bytes(x, Placement.parse("S(0)"), Mesh(tp=4))
    32
    """
    return largest_shard_numel(type.shape, placement, mesh) * type.dtype.itemsize


def lifetimes(program: Program) -> dict[Value, Lifetime]:
    """Return when each tensor of the logical program is held.

    A reshape counts as a view, though torch copies where it cannot be one.
    """
    at: dict[fx.Node, int] = {node: i for i, node in enumerate(program.calls())}
    owners: dict[Value, Value] = {}
    last: dict[Value, int] = {}
    for node in program.nodes():
        first = at.get(node, -1)
        used = operands(node)
        for value in used:
            last[owners[value]] = first
        is_view = node.op == "call_function" and may_share_memory(node.target)
        for index, type_ in enumerate(info(node).types):
            value = Value(node, index)
            if type_ is not None:
                owners[value] = owners[used[0]] if is_view and used else value
                last.setdefault(owners[value], first)
    for node, _ in program.results():
        last[owners[value_of(node)]] = len(at)
    return {
        value: Lifetime(at.get(value.node, -1), last[owner], owner)
        for value, owner in owners.items()
    }
