"""The parts of an op: what the ``expand`` column of its row traces to."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx
from torch.fx.node import map_arg
from torch.fx.proxy import GraphAppendingTracer

from partita.compiler.capture.keys import short_op
from partita.compiler.capture.torch_private import FakeMode
from partita.compiler.ir.program import (
    NodeInfo,
    Phase,
    Value,
    info,
    operands,
    set_info,
)
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.signature import Signature
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.rules.calls import call_of, rule_and_factors
from partita.compiler.rules.factors import Factors
from partita.compiler.rules.rule import Call, Rule, RuleSet

Move = tuple[TensorType, Placement, Placement]
"""A tensor that is made in one placement and used in another."""


@dataclass(frozen=True, eq=False)
class Expansion:
    """The parts of one call: a graph from its operands to its results.

    ``parts`` are the calls in order; the keys of their infos are ``exp/0`` and the
    like. ``read`` are their rows and factors, ``chunks`` those of the call.
    """

    graph: fx.Graph
    parts: tuple[fx.Node, ...]
    read: Mapping[fx.Node, tuple[Rule, Factors]]
    chunks: Mapping[str, int]

    @classmethod
    def of(cls, rules: RuleSet, rule: Rule, call: Call) -> Expansion | None:
        """Trace the parts of ``call``, whose row has an ``expand``.

        ``None`` where it is not taken apart into such chunks.
        """
        assert rule.expand is not None
        graph = fx.Graph()
        tracer = GraphAppendingTracer(graph)
        proxies = [
            fx.Proxy(graph.placeholder(f"operand_{i}"), tracer)
            for i in range(len(call.operands))
        ]
        results = rule.expand(call, *proxies)
        if results is None:
            return None
        graph.output(
            tuple(r.node if isinstance(r, fx.Proxy) else None for r in results)
        )
        graph.eliminate_dead_code()
        _write_types(graph, call.operands)
        parts = tuple(n for n in graph.nodes if _computes(n))
        read = {part: rule_and_factors(rules, call_of(part)) for part in parts}
        return cls(graph, parts, read, dict(call.chunks))

    @property
    def operands(self) -> list[fx.Node]:
        """The placeholders."""
        return list(self.graph.find_nodes(op="placeholder"))

    @property
    def results(self) -> tuple[fx.Node | None, ...]:
        """The nodes that are the op's results."""
        (output,) = self.graph.find_nodes(op="output")
        return cast("tuple[fx.Node | None, ...]", output.args[0])

    def moves(
        self, signature: Signature, parts: tuple[Signature, ...]
    ) -> Iterator[Move]:
        """Yield the re-placements inside, each once, under the parts' signatures."""
        made = {
            Value(node, 0): placement
            for node, placement in zip(self.operands, signature.operands, strict=True)
        }
        for part, chosen in zip(self.parts, parts, strict=True):
            for index, placement in enumerate(chosen.results):
                if placement is not None:
                    made[Value(part, index)] = placement
        seen: set[tuple[Value, Placement]] = set()
        for part, chosen in zip(self.parts, parts, strict=True):
            for value, wanted in zip(operands(part), chosen.operands, strict=True):
                if made[value] != wanted and (value, wanted) not in seen:
                    seen.add((value, wanted))
                    type_ = info(value.node).types[value.index]
                    assert type_ is not None
                    yield type_, made[value], wanted


def _computes(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target is not operator.getitem


def _write_types(graph: fx.Graph, types: tuple[TensorType, ...]) -> None:
    """Run the parts on fake tensors, and write what each makes into its info."""
    given = iter(types)
    counts: Counter[str] = Counter()
    values: dict[fx.Node, Any] = {}
    with FakeMode():
        for node in graph.nodes:
            if node.op == "placeholder":
                type_ = next(given)
                values[node] = torch.empty(type_.shape, dtype=type_.dtype)
                set_info(node, NodeInfo(node.name, Phase.FORWARD, (type_,)))
            elif node.op == "call_function":
                args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
                made = values[node] = node.target(*args, **kwargs)
                if _computes(node):
                    short = short_op(node)
                    key = f"{short}/{counts[short]}"
                    counts[short] += 1
                    set_info(node, NodeInfo(key, Phase.FORWARD, _types(made)))


def _types(made: Any) -> tuple[TensorType | None, ...]:
    results = made if isinstance(made, tuple | list) else (made,)
    return tuple(
        TensorType(tuple(x.shape), x.dtype) if isinstance(x, torch.Tensor) else None
        for x in results
    )
