"""Rows of users are proven on the calls of their model, or refused."""

from pathlib import Path

import pytest
from tests.compiler.rules.custom_ops import call

from partita.compiler.errors import BadRule
from partita.compiler.rules.rule import Rule
from partita.compiler.rules.table import default_rules
from partita.testing.user_rules import cache_folder, prove_calls

SWISH = call("swish", ("f32[512, 768]", 1.5), "f32[512, 768]")
DENSE = call("dense", ("bf16[64, 96]", "bf16[96, 32]", "bf16[32]"), "bf16[64, 32]")
HEADS = call("heads", ("f32[4, 16, 96]", 12), "f32[4, 16, 96]")
CRASH = call("crash", ("f32[64]",), "f32[64]")
WRONG = Rule(SWISH.op, "* -> *", linear="0")


def test_rows_that_hold_are_counted_by_their_signatures() -> None:
    rules = default_rules.with_(
        Rule(SWISH.op, "* -> *"),
        Rule(DENSE.op, "m k, k n, n -> m n", linear="0*1+2", flops="2 m k n"),
        Rule(HEADS.op, "* ? -> * ?"),
    )

    assert prove_calls(rules, [SWISH]) > 10
    assert prove_calls(rules, [DENSE, HEADS, HEADS]) == (
        prove_calls(rules, [DENSE]) + prove_calls(rules, [HEADS])
    )


def test_rows_of_the_table_and_calls_without_a_row_are_not_run() -> None:
    relu = call("relu", ("f32[4]",), "f32[4]")
    rules = default_rules.with_(Rule("rules_test.never.default", "* -> *"))

    assert prove_calls(rules, [relu, CRASH]) == 0
    same = default_rules.with_(WRONG)
    assert prove_calls(same, [SWISH], trusted=same) == 0


def test_row_that_does_not_hold_is_refused_with_its_figures() -> None:
    with pytest.raises(BadRule) as caught:
        prove_calls(default_rules.with_(WRONG), [SWISH])

    message = str(caught.value)
    assert message.startswith(
        "rule disproved: rules_test.swish.default of f64[8, 12]: "
        "(P(sum),) -> (P(sum),) on a=2: result 0 at rank 0 is ["
    )
    assert "; want [" in message
    assert "\n" not in message


def test_row_that_holds_for_small_numbers_alone_is_refused() -> None:
    clip = call("clip", ("f32[64, 32]",), "f32[64, 32]")

    with pytest.raises(BadRule, match="rule disproved"):
        prove_calls(default_rules.with_(Rule(clip.op, "* -> *", linear="0")), [clip])


def test_row_of_the_table_that_is_replaced_is_proven_anew() -> None:
    (x,) = call("any", ("f32[4, 6]",)).operands
    relu = call("any", (str(x),), str(x))
    relu = type(relu)("aten.relu.default", relu.args, (), (x,), (x,))
    wrong = Rule(relu.op, "* -> *", linear="0")

    with pytest.raises(BadRule, match=r"aten\.relu\.default of f64\[4, 6\]"):
        prove_calls(default_rules.with_(wrong), [relu])


def test_row_that_does_not_fit_its_call_is_refused() -> None:
    rules = default_rules.with_(Rule(SWISH.op, "a b c -> a b c"))

    with pytest.raises(BadRule, match="has 3 dims, the tensor 2"):
        prove_calls(rules, [SWISH])


def test_op_that_crashes_cannot_be_proven() -> None:
    rules = default_rules.with_(Rule(CRASH.op, "* -> *"))

    with pytest.raises(BadRule, match="cannot be proven: ended by SIGABRT"):
        prove_calls(rules, [CRASH])


def test_op_that_does_not_run_cannot_be_proven() -> None:
    bad = call("heads", ("f32[4, 16, 96]", 7), "f32[4, 16, 96]")
    rules = default_rules.with_(Rule(bad.op, "* ? -> * ?"))

    with pytest.raises(BadRule, match="does not run on random numbers on the CPU"):
        prove_calls(rules, [bad])


def test_cache_folder_is_where_the_user_wants_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "partita"

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "partita"
