"""Find rules of the user's: ``file.py:NAME`` or ``package.module:NAME``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any, cast

from partita.cli.named import hint_of, load_module_of
from partita.compiler.errors import BadOptions
from partita.compiler.plan.plan import Plan
from partita.compiler.rules.rule import Rule, RuleSet
from partita.compiler.rules.table import default_rules


def add_rules(parser: argparse.ArgumentParser) -> None:
    """Offer rows of the user's own."""
    parser.add_argument(
        "--rules",
        metavar="RULES",
        help="rules of your own ops, as Options(rules=...) takes them: file.py:NAME or "
        "package.module:NAME of a RuleSet, a Rule or a list of Rule",
    )


def load_rules(text: str | None) -> RuleSet:
    """Return the table that ``text`` names, or the default one with the rows it names.

    Raises:
        BadOptions: when there is no such file, module or name, and for what is no rule.
    """
    if text is None:
        return default_rules
    module, place, name = load_module_of("--rules", text, "NAME")
    if not hasattr(module, name):
        hint = hint_of(module, name, Rule | RuleSet | Sequence)
        raise BadOptions(f"--rules {text}: {place} has no {name}{hint}")
    found = getattr(module, name)
    if isinstance(found, RuleSet):
        return found
    rows = [found] if isinstance(found, Rule) else found
    if not _is_rows(rows):
        raise BadOptions(
            f"--rules {text}: {name} is of type {type(found).__name__}; want a "
            "RuleSet, a Rule or a list of Rule, e.g. "
            "[pt.Rule('my.op.default', '* -> *')]"
        )
    return default_rules.with_(*rows)


def unused_rules(plan: Plan, rules: RuleSet) -> Iterator[str]:
    """Yield what there is to say of rows of the user's that no call of ``plan`` has."""
    ops = {node.op for node in plan.nodes.values() if node.role is None}
    ops |= {whole.op for whole in plan.expanded.values()}
    for row in rules.rows:
        if row != default_rules.get(row.op) and row.op not in ops:
            close = get_close_matches(row.op, sorted(ops), n=3)
            hint = f"; did you mean {', '.join(close)}?" if close else ""
            yield f"the model has no call of {row.op}{hint}"


def _is_rows(value: Any) -> bool:
    if not isinstance(value, list | tuple) or not value:
        return False
    return all(isinstance(row, Rule) for row in cast("Sequence[Any]", value))
