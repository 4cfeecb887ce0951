"""From a node of a program to the call that rules are read for."""

from __future__ import annotations

from typing import cast

from torch import fx

from partita.compiler.errors import BadRule
from partita.compiler.ir.program import info, op_name, operands, type_of, value_of
from partita.compiler.rules.factors import Factors, read
from partita.compiler.rules.rule import Call, Rule, RuleSet

UNKNOWN = Rule("unknown", "?")
"""Stands in for an op that the table lacks: every tensor ``B`` on every axis."""


def _frozen(value: object) -> object:
    """Return an argument as a hashable value, tensors replaced by their types."""
    if isinstance(value, fx.Node):
        return type_of(value_of(value))
    if isinstance(value, list | tuple):
        return tuple(_frozen(item) for item in cast("list[object]", value))
    return value


def call_of(node: fx.Node) -> Call:
    """Return the call that ``node`` makes."""
    return Call(
        op=op_name(node),
        args=tuple(_frozen(arg) for arg in node.args),
        kwargs=tuple((name, _frozen(arg)) for name, arg in node.kwargs.items()),
        operands=tuple(type_of(value) for value in operands(node)),
        results=info(node).types,
    )


def rule_and_factors(rules: RuleSet, call: Call) -> tuple[Rule, Factors]:
    """Return the row of a call's op and its factors; ``UNKNOWN`` where none is.

    Raises:
        BadRule: when the row does not fit the call.
    """
    rule = rules.of_call(call)
    if rule is None:
        text = f"{', '.join('?' for _ in call.operands)} -> "
        text += ", ".join("?" for _ in call.results)
        return UNKNOWN, read(Rule(call.op, text), call)
    try:
        return rule, read(rule, call)
    except (BadRule, IndexError, TypeError) as error:
        raise BadRule(
            f"{call.op} on {[str(t) for t in call.operands]}: {error}"
        ) from error
