"""Rows of the user's own in a bundle: as text, since a bundle holds no code.

Whoever replays a bundle need not trust them: a wrong row makes the plan's programs
compute something else than the graph, and that is what a replay compares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from partita.compiler.errors import BadOptions, BadPlan
from partita.compiler.ir.program import Program, info, op_name
from partita.compiler.ir.sbp import Reduction
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.uses import mesh_of
from partita.compiler.rules.calls import call_of, rule_and_factors
from partita.compiler.rules.rule import Rule, RuleSet
from partita.compiler.rules.segments import segments_in
from partita.compiler.rules.signatures import axis_options, is_legal
from partita.compiler.rules.table import default_rules

_WORDS = ("op", "dims", "linear", "localize")


def check_rules(program: Program, plan: Plan, rules: RuleSet) -> None:
    """Check that ``rules`` are those that ``plan`` was made with.

    Raises:
        BadOptions: naming the first call that they do not allow.
    """
    derived = {key for row in plan.derived_rules for key in row.nodes}
    for node in program.calls():
        key = info(node).key
        row, decided = rules.get(op_name(node)), plan.nodes.get(key)
        if key in plan.expanded:
            is_known = row is not None and row.expand is not None
        elif decided is None or key in derived:
            continue  # of another model, or its row stands in the plan
        else:
            rule, found = rule_and_factors(rules, call_of(node))
            options = axis_options(rule, found, segments_in(decided.signature, found))
            mesh = mesh_of(plan, key)
            is_known = is_legal(decided.signature, found, options, mesh)
        if not is_known:
            raise BadOptions(
                f"bundle: no rule given here allows what the plan does at {key!r}; it "
                "was made with Options(rules=...), so want Bundle.of(..., rules=) or "
                "--rules with the same"
            )


def rows_to_carry(plan: Plan, rules: RuleSet) -> list[dict[str, Any]]:
    """Return the rows for calls of ``plan`` that are not the default table's.

    Raises:
        BadOptions: for a row that is more than text.
    """
    ops = {node.op for node in plan.nodes.values()}
    own = [r for r in rules.rows if r.op in ops and r != default_rules.get(r.op)]
    return [_written(row) for row in own]


def with_carried(rows: Sequence[Mapping[str, Any]]) -> RuleSet:
    """Return the default table with the rows of a bundle.

    Raises:
        BadPlan: for what is no row.
    """
    return default_rules.with_(*map(_read, rows)) if rows else default_rules


def _written(row: Rule) -> dict[str, Any]:
    columns = {"dims": row.dims, "linear": row.linear, "expand": row.expand}
    for name, value in columns.items():
        if callable(value):
            raise BadOptions(
                f"bundle: the rule of {row.op} has a function as its {name}, and a "
                "bundle holds no code; want a rule of text alone"
            )
    reduce = None if row.reduce is None else str(row.reduce)
    words = {word: getattr(row, word) for word in _WORDS}
    return {**words, "reduce": reduce, "free": row.free}


def _read(row: Mapping[str, Any]) -> Rule:
    words = {word: row[word] for word in _WORDS}
    reduce, free = row["reduce"], row["free"]
    if not (all(isinstance(x, str) for x in words.values()) and type(free) is bool):
        raise BadPlan(
            f"found {dict(row)}, wanted a rule's words and whether it is free"
        )
    known = None if reduce is None else Reduction(reduce)
    return Rule(**words, reduce=known, free=free)
