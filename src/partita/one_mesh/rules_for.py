"""The rules that a model is planned with: the table's, the user's, and derived ones."""

from __future__ import annotations

import time

from partita.compiler.capture.capture import Captured
from partita.compiler.rules.derive import derive
from partita.compiler.rules.rule import Call, Rule, RuleSet
from partita.compiler.rules.table import default_rules
from partita.testing.user_rules import cache_folder, prove_calls

DERIVE_S = 120.0
"""What the experiments for all calls of a model may take together."""


def rules_for(captured: Captured, rules: RuleSet) -> RuleSet:
    """Return ``rules`` with rows derived for the calls that have none.

    Rows that are not the default table's own are proven first, on the calls of the
    captured program that they are used for.

    Raises:
        BadRule: for a row that does not hold; the message shows where.
    """
    calls = list(dict.fromkeys(captured.reading.calls.values()))
    if rules is not default_rules:
        prove_calls(rules, calls)
    found: dict[Call, Rule] = {}
    until = time.monotonic() + DERIVE_S
    for call in calls:
        left_s = until - time.monotonic()
        if rules.get(call.op) is None and left_s > 0:
            rule = derive(call, cache_folder(), left_s)
            if rule is not None:
                found[call] = rule
    return rules.with_derived(found) if found else rules
