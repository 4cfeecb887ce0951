"""Calls are made on draws that differ, or not at all."""

import pytest
import torch
from tests.compiler.rules.custom_ops import call

from partita.compiler.rules.call_experiments import (
    differ,
    experiments_of,
    op_of,
    tell_apart,
)
from partita.compiler.rules.rule import Call

SWISH = call("swish", ("f32[4, 6]", 1.5), "f32[4, 6]")


def test_draws_hold_large_numbers_positive_ones_and_none() -> None:
    numbers = [experiment.tensors[0] for experiment in experiments_of(SWISH)]

    assert {x.dtype for x in numbers} == {torch.float64}
    assert any(bool((x > 0).all()) for x in numbers)
    assert any(bool(x.isnan().any()) for x in numbers)
    assert max(float(x.abs().nan_to_num().max()) for x in numbers) > 1000


def test_integers_reach_as_far_as_the_smallest_dim() -> None:
    found = experiments_of(call("pick", ("f32[6, 8]", "i64[40]"), "f32[40, 8]"))

    assert max(int(experiment.tensors[1].max()) for experiment in found) == 5


@pytest.mark.parametrize(
    "unusable",
    [
        call("noisy", ("f32[4]",), "f32[4]"),
        call("add_to", ("f32[4]", "f32[4]"), "f32[4]"),
        call("swish", ("f32[4]", 1.5), "f32[5]"),
        call("heads", ("f32[4, 6]", 5), "f32[4, 6]"),
    ],
    ids=lambda unusable: unusable.op,
)
def test_ops_that_draw_write_or_refuse_are_not_experimented_with(
    unusable: Call,
) -> None:
    assert experiments_of(unusable) == []


def test_constants_tell_nothing_apart() -> None:
    x = call("any", ("f64[4]",)).operands
    zeros = Call("aten.zeros_like.default", x, (), x, x)

    assert tell_apart(experiments_of(SWISH))
    assert not tell_apart(experiments_of(zeros))


def test_nan_is_no_difference() -> None:
    nan = torch.tensor([1.0, float("nan")])

    assert not differ(nan, nan.clone())
    assert differ(nan, torch.ones(2))
    assert differ(nan, None)


def test_op_is_found_by_the_name_that_torch_prints() -> None:
    assert op_of("aten.mm.default") is torch.ops.aten.mm.default
    assert op_of("aten.no_such_op.default") is None
