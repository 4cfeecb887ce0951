from functools import reduce

import pytest
import torch
from tests.compiler.rules.rule_samples import samples
from tests.models.zoo import ZOO

from partita.compiler.capture.capture import capture
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Reduction
from partita.compiler.rules.calls import call_of
from partita.compiler.rules.factors import read
from partita.compiler.rules.rule import Call, Rule
from partita.compiler.rules.signatures import axis_options
from partita.compiler.rules.table import ROWS, default_rules
from partita.testing import prover
from partita.testing.expansions import prove_expansion
from partita.testing.prover import RuleDisproved, prove, sample_of

SAMPLES = samples()
MESHES = (Mesh(a=2), Mesh(a=3), Mesh(a=2, b=2))

# Filled by position, or answered by all elements at once: there is nothing to split.
WHOLE = {
    "aten.all.default",
    "aten.any.default",
    "aten.arange.default",
    "aten.arange.start",
    "aten.arange.start_step",
    "aten.eye.default",
    "aten.eye.m",
    "aten.linspace.default",
    "aten.prod.default",
    "aten.scalar_tensor.default",
    "aten.tril_indices.default",
    "aten.triu_indices.default",
}


def test_rows_are_sorted_and_none_stands_twice() -> None:
    ops = [rule.op for rule in ROWS]

    assert ops == sorted(set(ops))


def test_every_row_has_a_sample_and_every_sample_a_row() -> None:
    assert {rule.op for rule in ROWS} == set(SAMPLES)


def test_every_op_exists_and_draws_no_random_numbers() -> None:
    for rule in ROWS:
        op = reduce(getattr, rule.op.split("."), torch.ops)

        assert torch.Tag.nondeterministic_seeded not in op.tags, rule.op  # type: ignore[attr-defined]


@pytest.mark.parametrize("op", sorted(SAMPLES))
def test_row_holds_for_the_real_op(op: str) -> None:
    rule = default_rules.get(op)
    assert rule is not None

    most = max(prove(rule, sample, m) for sample in SAMPLES[op] for m in MESHES)

    assert (most == 1) == (op in WHOLE)


@pytest.mark.parametrize("op", [rule.op for rule in ROWS if rule.expand])
def test_op_taken_apart_computes_the_same(op: str) -> None:
    for mesh in MESHES:
        proven = [prove_expansion(default_rules, s, mesh) for s in SAMPLES[op]]
        assert max(proven) > 0


@pytest.mark.parametrize("op", sorted(SAMPLES))
def test_flops_name_only_factors_of_the_call(op: str) -> None:
    rule = default_rules.get(op)
    assert rule is not None

    for sample in SAMPLES[op]:
        factors = read(rule, prover.call_of(sample))
        names = [word for word in factors.flops.split() if not word.isdecimal()]
        assert set(names) <= set(factors.all_sizes)


@pytest.mark.parametrize(
    "wrong",
    [
        Rule("aten.relu.default", "* -> *", linear="0"),
        Rule("aten.add.Tensor", "*, * -> *", linear="0*1"),
        Rule("aten.mm.default", "m k, k n -> m n", linear="0+1"),
        Rule("aten._softmax.default", "* -> *"),
        Rule("aten.cumsum.default", "* -> *", linear="0"),
        Rule("aten.amax.default", "* -> *"),
        Rule("aten.sum.default", "* -> ", reduce=Reduction.MAX),
        Rule("aten.full.default", " -> *"),
    ],
    ids=lambda rule: rule.op,
)
def test_wrong_row_is_disproved(wrong: Rule) -> None:
    with pytest.raises(RuleDisproved):
        prove(wrong, SAMPLES[wrong.op][0], Mesh(a=2))


def test_disproof_names_op_signature_and_values() -> None:
    wrong = Rule("aten.relu.default", "* -> *", linear="0")
    (sample,) = SAMPLES[wrong.op]

    with pytest.raises(RuleDisproved) as caught:
        prove(wrong, sample, Mesh(a=2))

    message = str(caught.value)
    assert message.startswith(
        "aten.relu.default of f64[4, 6]: (P(sum),) -> (P(sum),) on a=2: "
        "result 0 at rank 0 is ["
    )


def test_gradient_of_bias_is_no_sum_over_input_channels() -> None:
    op = "aten.convolution_backward.default"
    rule = default_rules.get(op)
    assert rule is not None
    sample = next(sample for sample in SAMPLES[op] if sample.args[3])

    options = axis_options(rule, read(rule, prover.call_of(sample)), {})

    assert [str(option.signature) for option in options if option.factor == "i"] == [
        "B, S(1), S(1) -> S(1), S(1), B"
    ]


@pytest.mark.slow
def test_rows_hold_for_every_call_of_the_zoo() -> None:
    calls: dict[Call, None] = {}
    for build in ZOO.values():
        model, args, kwargs = build()
        program = capture(model, args, kwargs).program
        calls |= dict.fromkeys(call_of(node) for node in program.calls())

    for call in calls:
        rule = default_rules.get(call.op)
        assert rule is not None, f"no row for {call.op}"
        sample = sample_of(call)
        assert prove(rule, sample, Mesh(a=2)) >= 1
        assert prove(rule, sample, Mesh(a=2, b=2)) >= 1

    assert len(calls) > 300
