"""A node becomes the call that rules are read for."""

from __future__ import annotations

import operator

import pytest
import torch
from tests.compiler.ir.small_programs import Builder

from partita.compiler.errors import BadRule
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.rules.calls import UNKNOWN, call_of, rule_and_factors
from partita.compiler.rules.rule import Call, Rule, RuleSet
from partita.compiler.rules.signatures import axis_options
from partita.compiler.rules.table import default_rules

aten = torch.ops.aten
at = TensorType.parse


def test_tensors_become_types_and_lists_tuples() -> None:
    b = Builder()
    x, y = b.enter("x", "f32[4, 6]"), b.enter("y", "i64[2]")
    cut = b.call("split/0", aten.split.Tensor, (x, 2), "f32[2, 6]; f32[2, 6]")
    half = b.graph.call_function(operator.getitem, (cut, 1))
    node = b.call("index/0", aten.index.Tensor, (half, [None, y]), "f32[2, 2]")
    node.kwargs = {"flag": [1, [True]]}
    assert call_of(node) == Call(
        op="aten.index.Tensor",
        args=(at("f32[2, 6]"), (None, at("i64[2]"))),
        kwargs=(("flag", (1, (True,))),),
        operands=(at("f32[2, 6]"), at("i64[2]")),
        results=(at("f32[2, 2]"),),
    )
    assert hash(call_of(node)) == hash(call_of(node))


def test_repeated_operands_are_repeated() -> None:
    b = Builder()
    x = b.enter("x", "f32[4, 4]")
    node = b.call("mm/0", aten.mm.default, (x, x), "f32[4, 4]")
    assert call_of(node).operands == (at("f32[4, 4]"), at("f32[4, 4]"))


def call(op: str, *operands: str) -> Call:
    types = tuple(at(text) for text in operands)
    return Call(op, types, (), types, (at("f32[4, 4]"),))


def test_known_op_has_its_row() -> None:
    mm = call("aten.mm.default", "f32[4, 6]", "f32[6, 4]")
    rule, factors = rule_and_factors(default_rules, mm)
    assert rule.op == "aten.mm.default"
    assert factors.sizes == {"m": 4, "k": 6, "n": 4}


def test_unknown_op_keeps_every_tensor_whole() -> None:
    magic = call("aten.magic.default", "f32[4, 6]", "f32[6, 4]")
    rule, factors = rule_and_factors(default_rules, magic)
    assert rule is UNKNOWN
    (option,) = axis_options(rule, factors, {})
    assert str(option.signature) == "B, B -> B"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            Rule("aten.mm.default", "m k, k n"),
            "aten.mm.default on ['f32[4, 6]', 'f32[6, 4]']: rule 'm k, k n' has no "
            "'->'",
        ),
        (
            Rule("aten.mm.default", "m k, m n -> m n"),
            "aten.mm.default on ['f32[4, 6]', 'f32[6, 4]']: rule aten.mm.default "
            "'m k, m n -> m n': factor m is 4 and 6",
        ),
        (
            Rule("aten.mm.default", lambda call: str(call.args[7])),
            "aten.mm.default on ['f32[4, 6]', 'f32[6, 4]']: tuple index out of range",
        ),
    ],
)
def test_row_that_does_not_fit_is_named(row: Rule, message: str) -> None:
    with pytest.raises(BadRule) as caught:
        rule_and_factors(
            RuleSet.of((row,)), call("aten.mm.default", "f32[4, 6]", "f32[6, 4]")
        )
    assert str(caught.value) == message
