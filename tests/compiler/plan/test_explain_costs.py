"""Who would be handed a tensor otherwise than it is wanted, and figures as text."""

from __future__ import annotations

import pytest
from small_plan import UP, signature

from partita.compiler.plan.explain_costs import boxed_for, costs_table, short, signed
from partita.compiler.plan.plan import Plan


@pytest.mark.parametrize(
    ("key", "operands", "results", "who"),
    [
        (UP, "", "B, S(1)", []),
        (UP, "", "B, B", ["up/mm/0"]),
        ("relu/0", "S(0), S(1)", "S(0), S(1)", []),
        ("relu/0", "B, S(1)", "B, S(1)", ["its up/mm/0", "down/mm/0"]),
    ],
)
def test_who_would_need_a_boxing(
    plan: Plan, key: str, operands: str, results: str, who: list[str]
) -> None:
    found = boxed_for(plan, key, signature(operands, results))
    assert found[: len(who)] == who
    assert bool(found) == bool(who)


def test_first_row_has_what_the_node_takes(plan: Plan) -> None:
    node = plan.nodes["mean/0"]
    table = costs_table(plan, "mean/0", node.seconds, node.signature, ())
    *_, chosen = table.splitlines()
    # Boxed before it and after it: 4 us each. A scalar is held.
    assert chosen.split("  ")[0] == "(S(0), B) -> (P(sum), B)"
    assert chosen.split()[5:12] == ["chosen", "2", "us", "8", "us", "128", "B"]
    assert "4 B" in chosen


def test_differences_have_a_sign_and_rounding_is_none() -> None:
    assert [signed(s) for s in (2e-6, -2e-6, 0.0, -1e-17)] == [
        "+2 us",
        "-2 us",
        "+0 s",
        "+0 s",
    ]


def test_many_names_are_the_first_and_a_count() -> None:
    assert [short(names) for names in ((), ("a",), ("a", "b", "c"))] == [
        "",
        "a",
        "a and 2 more",
    ]
