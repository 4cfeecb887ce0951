"""Write the program of one microbatch: the batch cut along an axis that lies in time.

Before          %2 = mm(%x: f32[8, 4], %w);  %3 = sum(%2);  return loss %3
After           %2 = mm(%x: f32[4, 4], %w);  %3 = sum(%2);  return loss %3: P(sum)

Parameters are whole in every microbatch, inputs its part of the batch; gradients and
the loss are sums over them. Sizes among the arguments shrink, counts stay the batch's
own: half a mean is a sum over half of the batch, divided by all of it. What is made
whole and used in part is sliced by the number of the microbatch, which enters; random
numbers so are those of the whole batch. Where it is to add up, each adds its share.

Requires  well_formed   keys are unique
Ensures   well_formed
Keeps     the sum over the microbatches, keys, roles
Not here  what is computed in parts and what whole (compiler/search/in_time.py), placing
          the microbatches' program on ranks (search), running it so often (runtime)
Source    microbatches as accumulation over time: GPipe, arXiv:1811.06965, section 2.2
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, ClassVar

import torch
from torch import fx

from partita.compiler.capture.torch_private import uncompiled
from partita.compiler.invariants import well_formed
from partita.compiler.ir.in_time import AXIS, InTime, is_zeros
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import (
    InputKind,
    InputRole,
    NodeInfo,
    OutputKind,
    Phase,
    Program,
    Value,
    info,
    map_operands,
    op_name,
    operands,
    placement_of,
    set_info,
    type_of,
    update_info,
    value_of,
)
from partita.compiler.ir.sbp import Partial, Placement, Sharding, Split
from partita.compiler.ir.signature import AxisSignature, Signature, compose
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.rules.rule import RuleSet
from partita.passes.localize import copy_localized

aten = torch.ops.aten

_SUM = Partial()
_SUMS = (OutputKind.LOSS, OutputKind.GRADIENT)


@dataclass(frozen=True)
class SplitInTime:
    """Cut the batch into ``count`` microbatches.

    ``chosen`` says by key what a node does on their axis (compiler/search/in_time.py),
    ``rules`` which of its arguments are sizes.
    """

    count: int
    chosen: Mapping[str, AxisSignature]
    rules: RuleSet
    name: ClassVar[str] = "split-in-time"
    requires: ClassVar = (well_formed,)
    ensures: ClassVar = (well_formed,)

    def run(self, program: Program) -> Program:
        """Return what one microbatch computes; ``in_time`` says how they join."""
        program = program.copy()
        for node in program.nodes():
            own = self.chosen[info(node).key]
            update_info(node, signature=compose((own,)))
        whole = _Slicer(program, self.count).run()
        return _shrink(whole, self.rules.in_pieces(), self.count)


class _Slicer:
    """Slices, in a program of the whole batch, what is made whole and used in part."""

    def __init__(self, program: Program, count: int) -> None:
        self.program = program
        self.count = count
        self.graph = program.graph
        self.slices: dict[tuple[fx.Node, Split], fx.Node] = {}
        self.shares: dict[fx.Node, fx.Node] = {}
        self.rows: dict[tuple[int, ...], fx.Node] = {}
        self.number: fx.Node | None = None

    def run(self) -> Program:
        """Return the program with every operand as its use wants it."""
        for node in list(self.program.calls()):
            used, signature = operands(node), info(node).signature
            assert signature is not None
            wanted = [placement.shardings[0] for placement in signature.operands]

            def seen(
                position: int,
                leaf: fx.Node,
                used: list[Value] = used,
                wanted: list[Sharding] = wanted,
                node: fx.Node = node,
            ) -> fx.Node:
                want = wanted[position]
                if want == placement_of(used[position]).shardings[0]:
                    return leaf
                if isinstance(want, Partial):
                    return self._share(used[position], leaf, node)
                assert isinstance(want, Split)
                return self._slice(used[position], leaf, want, node)

            map_operands(node, seen)
        self._share_results()
        inputs = self.program.inputs
        if self.number is not None:
            inputs = (*inputs, InputRole(InputKind.MICROBATCH, AXIS))
        return replace(self.program, inputs=inputs)

    def _slice(
        self, value: Value, leaf: fx.Node, part: Split, user: fx.Node
    ) -> fx.Node:
        """Return the microbatch's part of a dim, made before the first who uses it."""
        if (leaf, part) not in self.slices:
            type_, source = type_of(value), info(value.node)
            pieces = part.segments or (type_.shape[part.dim],)
            rows = self._rows(pieces, user)
            whole = Placement.broadcast(1)
            where = f"{part.dim}{_named(part.segments)}"
            fact = replace(
                source,
                key=f"{source.key}#{value.index}~{AXIS}.{where}",
                types=(type_,),
                phase=info(user).phase,
                signature=Signature((whole, whole), (Placement((part,)),)),
            )
            args = leaf, part.dim, rows
            made = self._call(aten.index_select.default, args, fact, user)
            self.slices[leaf, part] = made
        return self.slices[leaf, part]

    def _share(self, value: Value, leaf: fx.Node, user: fx.Node) -> fx.Node:
        """Return what every microbatch adds to a sum that all of them make whole."""
        if is_zeros(value.node):
            return leaf
        if leaf not in self.shares:
            source = info(value.node)
            fact = replace(
                source,
                key=f"{source.key}#{value.index}~{AXIS}",
                types=(type_of(value),),
                phase=source.phase if user.op == "output" else info(user).phase,
                signature=Signature((Placement.broadcast(1),), (Placement((_SUM,)),)),
            )
            args = leaf, self.count
            self.shares[leaf] = self._call(aten.div.Scalar, args, fact, user)
        return self.shares[leaf]

    def _share_results(self) -> None:
        """Have a loss and gradients that all microbatches make alike add up."""
        (output,) = self.graph.find_nodes(op="output")
        leaving: list[fx.Node] = []
        for leaf, role in self.program.results():
            value, is_sum = value_of(leaf), role.kind in _SUMS
            if is_sum and placement_of(value).shardings[0] != _SUM:
                leaf = self._share(value, leaf, output)
            leaving.append(leaf)
        output.args = (tuple(leaving),)

    def _rows(self, pieces: tuple[int, ...], user: fx.Node) -> fx.Node:
        """Return the indices of the microbatch's part of each piece of a dim."""
        if pieces not in self.rows:
            parts: list[fx.Node] = []
            at = 0
            for size in pieces:
                where = f"{size}" if len(pieces) == 1 else f"{at}+{size}"
                parts.append(self._run(at, size, where, user))
                at += size
            if len(parts) > 1:
                num = sum(pieces) // self.count
                fact = self._index("rows", _named(pieces)[1:], (num,), user)
                parts = [self._call(aten.cat.default, (parts, 0), fact, user)]
            (self.rows[pieces],) = parts
        return self.rows[pieces]

    def _run(self, at: int, size: int, where: str, user: fx.Node) -> fx.Node:
        """Return the indices of the microbatch's part of a run of a dim."""
        step = size // self.count
        number = self._number()
        places = {"dtype": torch.int64, "device": torch.device("cpu")}
        first = self._index("first", where, (), user)
        every = self._index("every", where, (step,), user)
        rows = self._index("rows", where, (step,), user)
        start = self._call(aten.mul.Tensor, (number, step), first, user)
        bounds = (at, at + step, 1) if at else (step,)
        count = aten.arange.start_step if at else aten.arange.default
        steps = self._call(count, bounds, every, user, **places)
        return self._call(aten.add.Tensor, (steps, start), rows, user)

    def _index(
        self, name: str, where: str, shape: tuple[int, ...], user: fx.Node
    ) -> NodeInfo:
        return NodeInfo(
            key=f"{AXIS}.{where}/{name}",
            phase=info(user).phase,
            types=(TensorType(shape, torch.int64),),
        )

    def _number(self) -> fx.Node:
        """Return the number of the microbatch, which enters."""
        if self.number is None:
            last = self.graph.find_nodes(op="placeholder")[-1]
            with self.graph.inserting_after(last):
                self.number = self.graph.placeholder(AXIS)
            self.number.meta = {}
            key = f"{InputKind.MICROBATCH}:{AXIS}"
            fact = NodeInfo(key, Phase.FORWARD, (TensorType((), torch.int64),))
            set_info(self.number, _whole(fact, 0))
        return self.number

    def _call(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...],
        fact: NodeInfo,
        user: fx.Node,
        **kwargs: Any,
    ) -> fx.Node:
        with self.graph.inserting_before(user):
            made = self.graph.call_function(target, args, kwargs)
        made.meta = {}
        if fact.signature is None:
            fact = _whole(fact, len(made.all_input_nodes))
        set_info(made, fact)
        return made


def _named(pieces: tuple[int, ...]) -> str:
    """Return how sizes of pieces are named in a key."""
    return "".join(f".{size}" for size in pieces)


def _whole(fact: NodeInfo, num_operands: int) -> NodeInfo:
    """Return what is known of a node that every microbatch computes alike."""
    whole = Placement.broadcast(1)
    return replace(fact, signature=Signature((whole,) * num_operands, (whole,)))


def _shrink(program: Program, rules: RuleSet, count: int) -> Program:
    """Return what a microbatch runs; all are alike, so what the first does."""
    mesh, first = Mesh(**{AXIS: count}), (0,)
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in program.graph.nodes:
        if node.op == "output":
            graph.output(tuple(copies[result] for result, _ in program.results()))
        elif node.target is operator.getitem:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            copies[node].meta = {}
        else:
            copy = copy_localized(graph, node, copies, rules, mesh, first)
            _use_part(copy, node, rules)
            update_info(copy, signature=None)
            copies[node] = copy
    joins = tuple(
        placement_of(value_of(node)).shardings[0] for node, _ in program.results()
    )
    module = uncompiled(torch.nn.Module(), graph)
    return replace(program, graph_module=module, in_time=InTime(count, joins))


def _use_part(copy: fx.Node, node: fx.Node, rules: RuleSet) -> None:
    """Have the copy of a node that does a part call the op that checks that it may."""
    rule = rules.get(op_name(node)) if node.op == "call_function" else None
    if rule is None or not rule.part or info(copy).types == info(node).types:
        return
    copy.target = reduce(getattr, rule.part.split("."), torch.ops)
