from typing import Any

import pytest

from partita.compiler.errors import BadRule
from partita.compiler.rules.localize import localize_args
from partita.compiler.rules.rule import Rule
from partita.compiler.rules.table import default_rules


def localized(op: str, args: tuple[Any, ...], *shapes: Any) -> tuple[Any, ...]:
    rule = default_rules.get(op)
    assert rule is not None
    return localize_args(rule, args, *shapes)


def test_stated_shape_becomes_that_of_the_shard() -> None:
    args = localized("aten.expand.default", ("x", [4, 8]), [(1, 8)], [(2, 8)])

    assert args == ("x", [2, 8])


def test_stated_pieces_become_those_of_the_shards() -> None:
    args = localized(
        "aten.split_with_sizes.default", ("x", [4, 8], 1), [(3, 6)], [(3, 2), (3, 4)]
    )

    assert args == ("x", [2, 4], 1)


@pytest.mark.parametrize(
    ("is_transposed", "weight", "image", "groups"),
    [
        (False, (4, 2, 3, 3), (2, 4, 8, 8), 2),
        (False, (8, 2, 3, 3), (2, 2, 8, 8), 1),
        (True, (4, 3, 3, 3), (2, 6, 8, 8), 2),
    ],
)
def test_groups_follow_from_the_channels(
    is_transposed: bool, weight: Any, image: Any, groups: int
) -> None:
    args = ("x", "w", None, [1, 1], [1, 1], [1, 1], is_transposed, [0, 0], 4)
    other = (2, 4, 8, 8)
    x, y = (other, image) if is_transposed else (image, other)

    forward = localized("aten.convolution.default", args, [x, weight], [y])
    backward = localized(
        "aten.convolution_backward.default",
        ("dy", "x", "w", None, *args[3:], [True, True, False]),
        [y, x, weight],
        [x, weight, None],
    )

    assert forward[8] == groups
    assert backward[9] == groups


def test_sizes_of_a_bias_become_those_of_its_shard() -> None:
    args = ("dy", "x", "w", [8], [1], [0], [1], False, [0], 1, [True, True, True])
    y, x, w = (2, 4, 6), (2, 3, 6), (4, 3, 1)

    found = localized(
        "aten.convolution_backward.default", args, [y, x, w], [x, w, (4,)]
    )

    assert found[3] == [4]


def test_call_that_states_no_size_stays_as_it_is() -> None:
    args = ("x", 2.0)

    assert localized("aten.mul.Tensor", args, [(2,)], [(2,)]) is args


def test_unknown_word_is_refused() -> None:
    with pytest.raises(BadRule, match="not of the form shape@1"):
        localize_args(Rule("op", "* -> *", localize="shapes"), (), [], [])


def test_a_dim_that_shrinks_is_one_chunk() -> None:
    args = localized(
        "partita.scan.default",
        ("x", 1, "cumsum", [1, 4], [6, 8]),
        [(3, 2)],
        [(3, 2)],
    )

    assert args == ("x", 1, "cumsum", [1, 1], [3, 2])


def test_chunks_of_a_whole_dim_stay() -> None:
    args = localized(
        "partita.scan.default",
        ("x", 1, "cumsum", [1, 4], [6, 8]),
        [(3, 8)],
        [(3, 8)],
    )

    assert args == ("x", 1, "cumsum", [1, 4], [3, 8])
