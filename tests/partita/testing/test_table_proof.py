"""Rows are proven on many calls; what fails is collected, not raised."""

import pytest
import torch

from partita.compiler.ir.mesh import Mesh
from partita.compiler.rules.rule import Rule, RuleSet
from partita.testing.prover import RuleDisproved, Sample, prove
from partita.testing.table_proof import format_proofs, in_double, prove_op, prove_table

X = torch.arange(24.0).double().reshape(4, 6) - 10
RELU = Sample("aten.relu.default", (X,), {})
RELU_IN_SINGLE = Sample("aten.relu.default", (X.float(),), {})
RIGHT = Rule("aten.relu.default", "* -> *")
WRONG = Rule("aten.relu.default", "* -> *", linear="0")


def test_right_row_is_proven_on_every_mesh() -> None:
    proof = prove_op(RIGHT, [RELU, RELU])

    assert proof.failures == ()
    assert (proof.num_samples, proof.num_options) == (2, 3)
    # B, S(0), S(1): on 2 ranks, on 3, on 2x2 and on 2x2x2, segmented halves of the
    # four rows included, where chunks are not empty.
    assert proof.num_checks > 2 * (3 + 3 + 9 + 20)


def test_failures_are_collected_and_the_next_call_is_tried() -> None:
    proof = prove_op(WRONG, [RELU, RELU])

    assert len(proof.failures) == 2
    assert "(P(sum),) -> (P(sum),)" in proof.failures[0]


def test_row_that_does_not_fit_its_call_is_a_failure() -> None:
    proof = prove_op(Rule("aten.relu.default", "a b c -> a b c"), [RELU])

    assert "does not fit a call" in proof.failures[0]


def test_rounding_inside_of_a_kernel_is_told_from_a_wrong_row() -> None:
    def through_large(x: torch.Tensor) -> torch.Tensor:
        return x * 1e7 - x * (1e7 - 1)

    sample = Sample("aten.relu.default", (X.float() / 7,), {}, through_large)
    right = Rule(sample.op, "* -> *", linear="0")

    with pytest.raises(RuleDisproved):
        prove(right, sample, Mesh(a=2))
    assert prove_op(right, [sample]).failures == ()
    assert prove_op(WRONG, [RELU_IN_SINGLE]).failures != ()


def test_double_precision_reaches_stated_dtypes_too() -> None:
    sample = Sample("aten._to_copy.default", (X.float(),), {"dtype": torch.float32})

    double = in_double(sample)

    assert double.args[0].dtype == double.kwargs["dtype"] == torch.float64


def test_table_is_printed_with_totals() -> None:
    samples = {"aten.relu.default": [RELU], "aten.magic.default": [RELU]}

    proofs = prove_table(RuleSet.of((RIGHT,)), samples)

    first, row, total = format_proofs(proofs, {"aten.relu.default": 7}).splitlines()
    assert first.split() == "op signatures samples checks missed failed".split()
    checks = str(proofs[0].num_checks)
    assert row.split() == ["aten.relu.default", "3", "1", checks, "7", "0"]
    assert total.split()[:2] == ["1", "ops"]
