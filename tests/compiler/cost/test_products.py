"""Which matmul an op is, read off its row."""

from __future__ import annotations

import pytest
from tests.compiler.rules.rule_values import call, x

from partita.compiler.cost.compute import Product
from partita.compiler.cost.products import local_sizes, product_of
from partita.compiler.rules.calls import rule_and_factors
from partita.compiler.rules.table import default_rules
from partita.compiler.search.candidates import flops_of
from partita.testing.prover import Sample, call_of

CONVOLUTION = ([1, 1], [1, 1], [1, 1], False, [0, 0])


def gradients(is_input_wanted: bool) -> Sample:
    wanted = [is_input_wanted, True, False]
    tensors = x(2, 6, 5, 5), x(2, 4, 5, 5), x(6, 4, 3, 3), None
    return call("convolution_backward", *tensors, *CONVOLUTION, 1, wanted)


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        (call("mm", x(4, 6), x(6, 8)), Product(4, 8, 6, 1, 1)),
        (call("addmm", x(8), x(4, 6), x(6, 8)), Product(4, 8, 6, 1, 1)),
        (call("bmm", x(2, 4, 6), x(2, 6, 8)), Product(4, 8, 6, 2, 1)),
        (call("baddbmm", x(8), x(2, 4, 6), x(2, 6, 8)), Product(4, 8, 6, 2, 1)),
        (
            call("convolution", x(2, 8, 4, 4), x(8, 2, 3, 3), None, *CONVOLUTION, 4),
            Product(m=2 * 4 * 4, n=2, k=2 * 3 * 3, batch=4, count=1),
        ),
        (
            gradients(True),
            Product(m=2 * 5 * 5, n=4, k=6 * 3 * 3, batch=1, count=2),
        ),
        (
            gradients(False),
            Product(m=6, n=4 * 3 * 3, k=2 * 5 * 5, batch=1, count=1),
        ),
        (call("mv", x(4, 6), x(6)), None),
        (call("dot", x(6), x(6)), None),
        (call("relu", x(4)), None),
    ],
    ids=lambda value: value.op if isinstance(value, Sample) else "",
)
def test_sizes_follow_from_where_factors_stand(
    sample: Sample, expected: Product | None
) -> None:
    _, factors = rule_and_factors(default_rules, call_of(sample))
    found = product_of(factors, local_sizes(factors, {}))
    assert found == expected
    if found is not None:
        flops = 2 * found.m * found.n * found.k * found.batch * found.count
        assert flops == flops_of(factors, {})


def test_splits_leave_the_largest_part() -> None:
    sample = call("mm", x(7, 6), x(6, 8))
    _, factors = rule_and_factors(default_rules, call_of(sample))
    ways = {"m": 2, "n": 4, "k": 3}
    assert product_of(factors, local_sizes(factors, ways)) == Product(4, 2, 2, 1, 1)
