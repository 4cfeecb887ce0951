"""What ranks return for shards, and what it recombines to."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from partita.compiler.ir.sbp import Broadcast, Partial, Reduction, Sharding, Split
from partita.compiler.rules.experiment import Experiment, Results, cut

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).double()
B, P = Broadcast(), Partial()
MAX, MIN = Partial(Reduction.MAX), Partial(Reduction.MIN)


def held(
    function: Callable[..., Tensor], operands: Sequence[Sharding], *tensors: Tensor
) -> tuple[Any, ...] | None:
    def run(shards: tuple[Tensor, ...], _: object) -> Results:
        return (function(*shards),)

    experiment = Experiment(run, tensors)
    found = experiment.results_of(operands, 2)
    return None if found is None else experiment.shardings_of(0, found)


def test_segments_are_cut_each_by_itself() -> None:
    assert cut(torch.arange(8), Split(0, (6, 2)), 2, 0).tolist() == [0, 1, 2, 6]


def column_sums(x: Tensor) -> Tensor:
    return x.sum(0)


def column_maxima(x: Tensor) -> Tensor:
    return x.amax(0)


def column_minima(x: Tensor) -> Tensor:
    return x.amin(0)


def row_softmax(x: Tensor) -> Tensor:
    return x.softmax(1)


def has_large(x: Tensor) -> Tensor:
    return (x > 9).any()


@pytest.mark.parametrize(
    ("function", "operands", "want"),
    [
        (torch.relu, [Split(1)], (Split(1),)),
        (torch.relu, [B], (B, MAX, MIN)),
        (torch.relu, [P], ()),
        (torch.neg, [P], (P,)),
        (column_sums, [Split(0)], (P,)),
        (column_maxima, [Split(0)], (MAX,)),
        (column_minima, [Split(0)], (MIN,)),
        (torch.t, [Split(0)], (Split(1),)),
        (row_softmax, [Split(1)], ()),
    ],
)
def test_results_recombine_as_they_ought_to(
    function: Callable[..., Tensor], operands: list[Sharding], want: tuple[Sharding]
) -> None:
    assert held(function, operands, X) == want


def test_shards_that_the_op_refuses_have_no_results() -> None:
    assert held(torch.mm, [Split(1), B], X, X.T.contiguous()) is None


def test_booleans_are_no_partial_results() -> None:
    assert held(has_large, [Split(0)], X) == (B,)


def test_stated_shapes_are_those_of_the_expected_shards() -> None:
    asked: list[Any] = []

    def run(shards: tuple[Tensor, ...], shapes: Sequence[Any]) -> Results:
        asked.append(list(shapes))
        return (shards[0].clone(), None)

    experiment = Experiment(run, (X,))
    found = experiment.results_of([Split(0)], 3, Split(0))

    assert asked == [[], [(2, 6), None], [(2, 6), None], [(0, 6), None]]
    assert found is not None
    assert experiment.shardings_of(0, found) == (Split(0),)
    assert experiment.shardings_of(1, found) == (None,)
