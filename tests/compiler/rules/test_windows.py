"""What windows see beyond a chunk, and how a row marks the dims they slide over."""

import pytest
import torch
from tests.compiler.rules.rule_values import call, x

from partita.compiler.rules.windows import Window, of_convolution, of_pool
from partita.testing.prover import call_of


@pytest.mark.parametrize(
    ("window", "before", "behind"),
    [
        (Window(3, 1, 1), 1, 1),
        (Window(3, 2, 1), 1, 0),
        (Window(7, 2, 3), 3, 2),
        (Window(3, 1, 2, 2), 2, 2),
        (Window(1, 2), 0, 0),
    ],
)
def test_rows_around_a_chunk(window: Window, before: int, behind: int) -> None:
    assert (window.before, window.behind) == (before, behind)


def test_windows_that_tile_need_nothing_of_others() -> None:
    assert Window(2, 2).mark(8, 4) == ""
    assert Window(3, 2, 1).mark(8, 4) == "!~"
    assert Window(3, 1).mark(8, 6) is None


def test_windows_are_those_of_the_call() -> None:
    image, weight = torch.ones(1, 2, 8, 8), torch.ones(2, 2, 3, 5)
    rest = ([1, 2], [1, 2], [1, 1], False, [0, 0], 1)
    convolution = call_of(call("convolution", image, weight, None, *rest))
    pool = call_of(call("avg_pool2d", x(1, 4, 6), [2, 3]))

    found = of_convolution(convolution, 3, 0)

    assert found == (Window(3, 1, 1), Window(5, 2, 2))
    assert of_pool(pool, 1) == (Window(2, 2), Window(3, 3))


@pytest.mark.parametrize(
    ("name", "num"),
    [("avg_pool2d", 2), ("max_pool2d_with_indices", 2), ("avg_pool3d", 3)],
)
def test_one_number_of_a_pool_is_that_of_every_dim(name: str, num: int) -> None:
    pool = call_of(call(name, x(1, 4, 6, 6), [3], [1], [1]))

    assert of_pool(pool, 1) == (Window(3, 1, 1),) * num


def test_one_number_is_that_of_every_dim() -> None:
    image, weight = torch.ones(1, 2, 8, 8), torch.ones(2, 2, 3, 5)
    rest = ([2], [0], [1], False, [0], 1)  # as of Conv2d(padding="valid")
    convolution = call_of(call("convolution", image, weight, None, *rest))

    assert of_convolution(convolution, 3, 0) == (Window(3, 2), Window(5, 2))
