"""Equal but for rounding: by the coarsest dtype, relative to the largest summand."""

import pytest
import torch

from partita.compiler.rules.agreement import agrees, scale_of, tolerance_of

DOUBLE, SINGLE = torch.ones(2).double(), torch.ones(2)


def test_tolerance_is_that_of_the_coarsest_tensor() -> None:
    fine = tolerance_of(
        [DOUBLE, DOUBLE.to(torch.complex128), torch.ones(2).bool(), None]
    )

    assert fine == tolerance_of([])
    for coarse in (SINGLE, SINGLE.to(torch.complex64), SINGLE.half()):
        assert tolerance_of([DOUBLE, coarse]) > 100 * fine


def test_scale_is_the_largest_finite_number_and_at_least_one() -> None:
    infinite = torch.tensor([3.0, float("inf"), float("nan"), -7.0])

    assert scale_of([infinite, DOUBLE]) == 7
    assert scale_of([DOUBLE / 4, torch.ones(0), torch.tensor([True])]) == 1


@pytest.mark.parametrize(
    ("found", "want", "same"),
    [
        ([1.0, float("nan")], [1.0, float("nan")], True),
        ([1.0, float("inf")], [1.0, float("-inf")], False),
        ([1.0 + 1e-7, 2.0], [1.0, 2.0], True),
        ([1.0 + 1e-5, 2.0], [1.0, 2.0], False),
    ],
)
def test_numbers_are_compared_within_the_tolerance(
    found: list[float], want: list[float], same: bool
) -> None:
    a, b = (torch.tensor(x, dtype=torch.float64) for x in (found, want))

    assert agrees(a, b, 1e-6, 1.0) is same


def test_integers_have_to_be_equal() -> None:
    assert agrees(torch.tensor([3]), torch.tensor([3]), 1.0, 1.0)
    assert not agrees(torch.tensor([3]), torch.tensor([4]), 1.0, 1.0)
