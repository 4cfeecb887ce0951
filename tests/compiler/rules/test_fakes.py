"""What ops of the rules make when nothing is computed."""

from __future__ import annotations

import torch

from partita.compiler.rules.fakes import like_first, of_sizes


def test_results_have_the_stated_sizes_and_the_dtypes_of_arguments() -> None:
    x, places = torch.empty(3, dtype=torch.float64), torch.empty(3, dtype=torch.int32)
    made = of_sizes(0, 1)(x, places, "kind", [2, 5])
    assert [tuple(one.shape) for one in made] == [(2, 5), (2, 5)]
    assert [one.dtype for one in made] == [torch.float64, torch.int32]


def test_one_result_is_no_tuple() -> None:
    made = of_sizes(0)(torch.empty(3), [2])
    assert isinstance(made, torch.Tensor)
    assert tuple(made.shape) == (2,)


def test_a_result_is_as_the_first_argument_is() -> None:
    made = like_first(torch.empty(2, 3, dtype=torch.int64), torch.empty(7))
    assert (tuple(made.shape), made.dtype) == ((2, 3), torch.int64)
