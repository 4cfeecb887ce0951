"""The formula behind a price: seconds of a call or of a collective, with symbols.

The formulas are those that the search priced by. What a plan does not know about a
call, a row of the user's own or a constant that does not print, leaves it without one:
a formula is shown only where it gives the seconds that the plan has, or a collective's
part of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import isclose

from partita.compiler.cost.formulas import Formula, collective_formula
from partita.compiler.cost.op_formula import op_formula
from partita.compiler.cost.step import find_step
from partita.compiler.cost.symbolic import boxing_bytes_expr
from partita.compiler.errors import BadRule
from partita.compiler.hardware.profile import Hardware
from partita.compiler.plan.document import Boxing, Document, Node
from partita.compiler.plan.printed_call import find_op, read_arguments
from partita.compiler.plan.units import format_seconds
from partita.compiler.plan.uses import type_of
from partita.compiler.rules.calls import rule_and_factors
from partita.compiler.rules.rule import Call
from partita.compiler.rules.table import default_rules

_SAME = 1e-9


def call_formula(document: Document, key: str) -> Formula | None:
    """Return the formula of a call's seconds, those of all microbatches.

    It is ``None`` where the plan tells too little.
    Its symbols are the factors of the op's row, the axes of the mesh and the figures of
    the device; ``Formula.values`` says what they are.
    """
    node = document.nodes[key]
    call = None if node.role is not None else printed_call(document, node)
    if call is None or default_rules.get(call.op) is None:
        return None
    hardware = Hardware.from_dict(document.hardware)
    try:
        _, factors = rule_and_factors(default_rules, call)
        mesh = document.mesh
        once = op_formula(call, factors, node.signature, mesh, hardware)
    except BadRule:
        return None
    formula = replace(once, expr=document.microbatches * once.expr)
    is_same = isclose(formula.evaluate_at({}), node.seconds, rel_tol=_SAME)
    return formula if is_same else None


def step_formula(document: Document, boxing: Boxing, number: int) -> Formula | None:
    """Return the formula of the collective of a boxing's step, ``None`` if it has none.

    Its symbols are the logical dims of the tensor, ``d0`` and so on, the bytes of an
    element, the axes of the mesh and the figures of the links. What the copies around
    the collective take is not in it.
    """
    mesh, type_, at = document.mesh, type_of(document, boxing.ref), boxing.source
    for stated in boxing.lowering[:number]:
        at = stated.after
    stated = boxing.lowering[number]
    axis = mesh.axis(stated.axis)
    step = find_step(type_.shape, at, stated.after, axis, mesh)
    if step is None or step.collective is None:
        return None
    num_bytes = boxing_bytes_expr(type_, (step,), mesh)
    hardware = Hardware.from_dict(document.hardware)
    found = collective_formula(step.collective, num_bytes, mesh, axis, hardware)
    sizes = {f"d{dim}": float(size) for dim, size in enumerate(type_.shape)}
    own = {**sizes, "itemsize": float(type_.dtype.itemsize)}
    formula = Formula(found.expr, {**found.values, **own})
    is_part = formula.evaluate_at({}) <= stated.seconds * (1 + _SAME)
    return formula if is_part else None


def print_formula(formula: Formula) -> Iterator[str]:
    """Yield a formula, its value and what its symbols stand for, as lines."""
    text, stands = say_formula(formula)
    yield f"  formula    {text}"
    if stands:
        yield f"             with {stands}"


def say_formula(formula: Formula) -> tuple[str, str]:
    """Return a formula with its value, and what its symbols stand for, as text."""
    settled = formula.settled()
    seconds = format_seconds(formula.evaluate_at({}))
    names = sorted(map(str, settled.expr.free_symbols))
    stands = ", ".join(f"{name}={formula.values[name]:.6g}" for name in names)
    return f"{settled} = {seconds}", stands


def printed_call(document: Document, node: Node) -> Call | None:
    """Return the call that a node makes; ``None`` where its print does not tell."""
    target = find_op(node.op)
    if target is None:
        return None
    operands = tuple(type_of(document, ref) for ref in node.operands)
    try:
        args, kwargs = read_arguments(target, node.constants, operands)
    except ValueError:
        return None
    frozen = tuple(tuple(arg) if isinstance(arg, list) else arg for arg in args)
    named = tuple(kwargs.items())
    return Call(node.op, frozen, named, operands, node.types)
