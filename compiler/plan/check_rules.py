"""Check that rules allow what a plan says of its calls, as far as it tells of them.

A plan that was edited by hand may place an op as no rule does. The program itself is
needed for calls that a plan prints too little of; those pass here, and are checked when
the plan is carried out (passes/annotate_placements.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from partita.compiler.errors import BadPlan, BadRule
from partita.compiler.ir.sbp import Reduction
from partita.compiler.plan.document import Document
from partita.compiler.plan.explain_formula import printed_call
from partita.compiler.rules.calls import UNKNOWN, rule_and_factors
from partita.compiler.rules.rule import Rule, RuleSet
from partita.compiler.rules.segments import segments_in
from partita.compiler.rules.signatures import axis_options, is_legal


def derived_by_node(document: Document) -> Mapping[str, Rule]:
    """Return the rules that were derived for a plan, by the calls that they are of."""
    return {
        key: Rule(
            row.op,
            row.dims,
            row.linear,
            None if row.reduce is None else Reduction(row.reduce),
        )
        for row in document.derived_rules
        for key in row.nodes
    }


def check_rules(document: Document, rules: RuleSet, where: str) -> None:
    """Check the signatures of a plan of one stage or several.

    Raises:
        BadPlan: for the first call that no rule allows so; ``where`` begins it.
    """
    derived = derived_by_node(document)
    seen: set[object] = set()
    for key, node in document.nodes.items():
        call = None if node.role is not None else printed_call(document, node)
        own = derived.get(key)
        alike = call, node.signature, node.stage, own
        if call is None or alike in seen:
            continue
        seen.add(alike)
        try:
            rule, factors = rule_and_factors(rules.with_(own) if own else rules, call)
        except BadRule:
            continue
        if rule is UNKNOWN:
            continue
        signature, mesh = node.signature, document.stages[node.stage].mesh
        options = axis_options(rule, factors, segments_in(signature, factors))
        if not is_legal(signature, factors, options, mesh):
            if any(other.signature == signature for other in node.alternatives):
                raise BadPlan(
                    f"{where}: nodes.{key}.signature: {node.op} is taken apart to be "
                    f"{signature}, which another search does; pin {key!r} to "
                    f"'{signature.results[0]}' there"
                )
            known = [str(other.signature) for other in node.alternatives[:2]]
            like = f"; of its alternatives there is {' and '.join(known)}"
            raise BadPlan(
                f"{where}: nodes.{key}.signature: no rule of {node.op} allows "
                f"{signature}{like if known else ''}"
            )
