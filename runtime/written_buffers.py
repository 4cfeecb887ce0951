"""Have a program that is compiled as a whole write buffers where they lie.

A batch norm has three buffers; to copy each after the step would be a launch on a GPU
each. Written in the program it costs none: what computes the value writes it there. It
is the last that a program does, so that all of it reads what was there before.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import cast

import torch
from torch import fx
from torch.fx.node import Argument

from partita.compiler.capture.schemas import may_share_memory
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.program import InputKind, OutputKind
from partita.runtime.feeds import FeedKey

aten = torch.ops.aten


def write_buffers(
    graph: fx.Graph,
    local: LocalProgram,
    taken: Sequence[int],
    written: frozenset[FeedKey],
) -> None:
    """Have a graph write to buffers, and return ``None`` for each that it writes.

    Buffers that take over each other's memory leave as they did: the one would have to
    be written before the other, and after it.

    Args:
        graph: of ``local``, flat.
        local: whose roles say which output is the new value of which input.
        taken: which inputs of ``local`` the graph takes.
        written: buffers that enter as they are in every step.
    """
    held = {
        (local.inputs[at].kind, local.inputs[at].name): node
        for at, node in zip(taken, graph.find_nodes(op="placeholder"), strict=True)
    }
    writable = written & held.keys()
    end = graph.output_node()
    left = list(cast(tuple[Argument, ...], end.args[0]))
    sources = [_source(value) if isinstance(value, fx.Node) else None for value in left]
    for position, (role, source) in enumerate(zip(local.outputs, sources, strict=True)):
        key = InputKind.BUFFER, role.name
        if role.kind is not OutputKind.MUTATED_BUFFER or key not in writable:
            continue
        if source is None or source.op == "placeholder" or held[key] in sources:
            continue
        with graph.inserting_before(end):
            graph.call_function(aten.copy_.default, (held[key], left[position]))
        left[position] = None
    end.args = (tuple(left),)


def _source(value: fx.Node) -> fx.Node:
    """Return the node whose memory a value may be in."""
    while value.target is operator.getitem or may_share_memory(value.target):
        value = value.all_input_nodes[0]
    return value
