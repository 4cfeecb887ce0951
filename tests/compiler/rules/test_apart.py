"""The parts of a call beside its program: which values they use and make."""

from __future__ import annotations

import torch
from torch import fx

from partita.compiler.ir.program import NodeInfo, Phase, Value, info, set_info
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.rules.apart import Apart
from partita.compiler.rules.expansion import Expansion

TYPE = TensorType((4,), torch.float32)
FACT = NodeInfo("ln/op/0", Phase.BACKWARD_INPUT, (TYPE,), "ln", "model.py:3")


def made() -> tuple[Apart, list[Value]]:
    """Return the parts of a call of two operands, which one of its results is."""
    graph = fx.Graph()
    one, other = graph.placeholder("one"), graph.placeholder("other")
    added = graph.call_function(torch.ops.aten.add.Tensor, (one, other))
    doubled = graph.call_function(torch.ops.aten.mul.Tensor, (added, one))
    graph.output((doubled, None, other))
    for part, key in ((added, "add/0"), (doubled, "mul/0")):
        set_info(part, NodeInfo(key, Phase.FORWARD, (TYPE,)))
    program = fx.Graph()
    given = [Value(program.placeholder(name), 0) for name in ("x", "y")]
    node = program.call_function(torch.ops.aten.add.Tensor, (given[0].node, 1))
    set_info(node, FACT)
    expansion = Expansion(graph, (added, doubled), {}, {})
    return Apart(node, expansion), given


def test_parts_have_keys_below_the_call_and_the_rest_of_it() -> None:
    apart, _ = made()
    keys = ["ln/op/0~expand/add/0", "ln/op/0~expand/mul/0"]
    assert [info(part).key for part in apart.parts] == keys
    for part in apart.parts:
        fact = info(part)
        assert (fact.phase, fact.module, fact.source) == (
            FACT.phase,
            FACT.module,
            FACT.source,
        )


def test_parts_use_what_the_call_is_given_and_each_other() -> None:
    apart, (x, y) = made()
    add, mul = apart.parts
    assert dict(apart.used((x, y))) == {add: [x, y], mul: [Value(add, 0), x]}
    assert dict(apart.used((y, y))) == {add: [y, y], mul: [Value(add, 0), y]}


def test_results_are_those_of_parts_or_operands_as_they_are() -> None:
    apart, (x, y) = made()
    assert dict(apart.results((x, y))) == {0: Value(apart.parts[1], 0), 2: y}
