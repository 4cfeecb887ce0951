"""What holds and is not claimed is found; what is claimed, or no use, is not."""

from dataclasses import replace

import pytest
import torch
from tests.compiler.rules.rule_values import call, mask, x

from partita.compiler.ir.sbp import Broadcast, Partial, Split
from partita.compiler.ir.signature import AxisSignature
from partita.compiler.rules.rule import Rule
from partita.compiler.rules.table import default_rules
from partita.testing.missed import find_all_missed, find_missed, implies, redrawn
from partita.testing.prover import Sample

B, P, S0, S1 = Broadcast(), Partial(), Split(0), Split(1)


def missed(sample: Sample, **columns: object) -> set[str]:
    """Return what a row misses after some of its columns were changed."""
    rule = default_rules.get(sample.op) or Rule(sample.op, "* -> *")
    changed = replace(rule, **columns)
    return {str(found.signature) for found in find_missed(changed, sample)}


@pytest.mark.parametrize(
    ("sample", "columns", "want"),
    [
        (call("mm", x(4, 6), x(6, 8)), {}, set[str]()),
        (
            call("mm", x(4, 6), x(6, 8)),
            {"linear": ""},
            {"P(sum), B -> P(sum)", "B, P(sum) -> P(sum)"},
        ),
        (
            call("mm", x(4, 6), x(6, 8)),
            {"dims": "m ?, ? n -> m n"},
            {"S(1), S(0) -> P(sum)"},
        ),
        (call("neg", x(4, 6)), {"dims": "* ? -> * ?"}, {"S(1) -> S(1)"}),
        (
            call("amax", x(4, 6), [0]),
            {"reduce": None},
            {"S(0) -> P(max)"},
        ),
        (
            call("add.Tensor", x(4, 6), x(6)),
            {"linear": ""},
            {"P(sum), P(sum) -> P(sum)"},
        ),
        (
            call("eq.Scalar", torch.arange(24).remainder(3).reshape(4, 6).double(), 0),
            {"dims": "? -> ?"},
            {"S(0) -> S(0)", "S(1) -> S(1)"},
        ),
    ],
    ids=lambda value: value.op if isinstance(value, Sample) else None,
)  # fmt: skip
def test_what_was_taken_from_a_row_is_missed(
    sample: Sample, columns: dict[str, object], want: set[str]
) -> None:
    assert missed(sample, **columns) == want


def test_calls_that_state_their_shapes_are_tried_with_local_ones() -> None:
    sample = call("expand", x(4, 1), [4, 6])

    assert missed(sample) == set()
    assert missed(sample, dims="? ? -> ? ?") == {"S(0) -> S(0)"}


def test_placements_with_which_the_op_crashes_do_not_hold() -> None:
    grad, image = x(2, 4, 3, 3), x(2, 4, 6, 6)
    sample = call("_adaptive_avg_pool2d_backward", grad, image)

    assert not any("S(0), B" in found for found in missed(sample))


@pytest.mark.parametrize(
    ("known", "other", "want"),
    [
        (((S0,), S0), ((S0,), S0), True),
        (((S0,), S0), ((B,), S0), True),  # a whole tensor is cut for free
        (((P,), P), ((B,), P), True),
        (((B,), B), ((S0,), S0), False),
        (((S0, B), P), ((S0, S1), P), False),
        (((S0,), B), ((S0,), P), True),  # a whole result is as good as a partial one
        (((S0,), P), ((S0,), B), False),
    ],
)
def test_what_can_be_had_for_free_is_not_missed(
    known: tuple[tuple[Split, ...], Split],
    other: tuple[tuple[Split, ...], Split],
    want: bool,
) -> None:
    one, two = (AxisSignature(ops, (result,)) for ops, result in (known, other))
    assert implies(one, two) is want


def test_constants_tell_nothing() -> None:
    assert missed(call("new_full", x(4, 6), [4], 2.0)) == set()


def test_calls_of_next_to_nothing_are_left_out() -> None:
    rows = [Rule("aten.neg.default", "? -> ?")]

    found = find_all_missed(
        rows, {"aten.neg.default": [call("neg", x(1)), call("neg", x())]}
    )

    assert found == {}


def test_draws_stay_in_the_domain_of_the_values() -> None:
    generator = torch.Generator().manual_seed(0)
    indices, odds = torch.tensor([0, 7, 3]), torch.tensor([0.25, 0.5, 1.0])

    assert sorted(redrawn(indices, generator).tolist()) == [0, 3, 7]
    assert bool(
        ((redrawn(odds, generator) > 0) & (redrawn(odds, generator) <= 1)).all()
    )
    assert redrawn(torch.zeros(4), generator).all()
    assert redrawn(mask(4, 6), generator).dtype == torch.bool


def test_maximum_of_partial_sums_is_luck() -> None:
    sample = Sample("aten.relu.default", (-torch.rand(2, 2).double() - 9,), {})

    assert missed(sample) == set()
