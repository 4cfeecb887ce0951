"""From a node of a program to the call that rules are read for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import cast

from torch import fx

from partita.compiler.errors import BadRule
from partita.compiler.ir.program import Value, info, op_name, type_of, value_of
from partita.compiler.rules.factors import Factors, read
from partita.compiler.rules.rule import Call, Rule, RuleSet

_SEQUENCES = list, tuple

UNKNOWN = Rule("unknown", "?")
"""Stands in for an op that the table lacks: every tensor ``B`` on every axis."""


def read_calls(
    nodes: Iterable[fx.Node],
) -> Iterator[tuple[fx.Node, Call, list[Value]]]:
    """Yield what each node calls, and its operands; equal calls are one object."""
    known: dict[object, Call] = {}
    for node in nodes:
        used: list[Value] = []
        args = _frozen(node.args, used)
        names = tuple(node.kwargs)
        kwargs = _frozen(node.kwargs.values(), used) if names else ()
        results = info(node).types
        key = node.target, args, names, kwargs, results
        call = known.get(key)
        if call is None:
            pairs = tuple(zip(names, kwargs, strict=True))
            types = tuple(map(type_of, used))
            call = Call(op_name(node), args, pairs, types, results)
            known[key] = call
        yield node, call, used


def calls_of(nodes: Iterable[fx.Node]) -> dict[fx.Node, Call]:
    """Return the calls that nodes make; those that are equal are one object."""
    return {node: call for node, call, _ in read_calls(nodes)}


def call_of(node: fx.Node) -> Call:
    """Return the call that ``node`` makes."""
    return calls_of([node])[node]


def _frozen(values: Iterable[object], used: list[Value]) -> tuple[object, ...]:
    """Return arguments as hashable values, tensors replaced by their types; note those.

    >>> used = []
    >>> _frozen([1, [2, None]], used), used
    ((1, (2, None)), [])
    """
    found: list[object] = []
    for value in values:
        if isinstance(value, fx.Node):
            operand = value_of(value)
            used.append(operand)
            value = type_of(operand)
        elif isinstance(value, _SEQUENCES):
            value = _frozen(cast("list[object]", value), used)
        found.append(value)
    return tuple(found)


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
