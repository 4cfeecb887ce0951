"""The dims of ops on matrices and images, as text."""

import pytest
import torch
from tests.compiler.rules.rule_values import call, ints, mask, x

from partita.compiler.rules.table import default_rules
from partita.testing.prover import Sample, call_of

POINTS = ints(0, 4, 3)
PLACE = torch.tensor(True)


@pytest.mark.parametrize(
    ("sample", "text"),
    [
        (call("diagonal", x(4, 6, 8), 1, 0, -1), "? d1 ? -> d1 ?"),
        (call("diagonal", x(4, 6)), "? ? -> ?"),
        (call("diagonal_backward", x(6, 4), [4, 6, 8], 1, 0, 2), "d1 ? -> ? d1 ?"),
        (call("addmv", x(), x(4, 6), x(6)), "?, m k, k -> m"),
        (call("addbmm", x(8), x(2, 4, 6), x(2, 6, 8)), "n, b m k, b k n -> m n"),
        (call("unfold", x(4, 8), 1, 3, 2), "d0 ? -> d0 ? ?"),
        (call("mode", x(4, 6)), "d0 ? -> d0, d0"),
        (call("mode", x(4, 6), 0, True), "? d1 -> 1 d1, 1 d1"),
        (call("mode", x()), "? -> , "),
        (
            call("index_add", x(4, 6), 0, POINTS, x(3, 6)),
            "? d1, i, i d1 -> ? d1",
        ),
        (
            call("index_add", mask(4, 6), 0, POINTS, mask(3, 6)),
            "? d1, ?, ? d1 -> ? d1",
        ),
        (call("index_put", x(4, 6), [mask(4)], x(6)), "d0 d1, d0, d1 -> d0 d1"),
        (call("index_put", x(4, 6), [mask(4, 6)], x()), "d0 d1, d0 d1, ? -> d0 d1"),
        (
            call("index_put", x(4, 6), [torch.ones(4).bool()], x(4, 6)),
            "? d1, ?, ? d1 -> ? d1",
        ),
        (call("index_put", x(4, 6), [None, mask(6)], x(1, 1)), "?, ?, ? -> ?"),
        (call("masked_scatter", x(4, 6), PLACE, x(4, 6)), "*, ?, * -> *"),
        (call("masked_scatter", x(4, 6), PLACE, x(24)), "?, ?, ? -> ?"),
        (call("masked_scatter", x(6), PLACE.view(1, 1), x(6)), "?, ?, ? -> ?"),
        (call("masked_scatter", x(4, 6), mask(4, 6), x(4, 6)), "?, ?, ? -> ?"),
        (call("masked_scatter_backward", x(4, 6), PLACE, [4, 6]), "*, ? -> *"),
        (call("masked_scatter_backward", x(4, 6), PLACE, [8, 6]), "?, ? -> ?"),
        (
            call("col2im", x(2, 16, 9), [4, 4], [2, 2], [1, 1], [0, 0], [1, 1]),
            "b (c k^:4) ? -> b c ? ?",
        ),
        (
            call("im2col", x(4, 4, 4), [2, 2], [1, 1], [0, 0], [1, 1]),
            "c ? ? -> (c k^:4) ?",
        ),
        (
            call("pixel_shuffle", x(8, 4, 6), 2),
            "* (c k^:4) h w -> * c (h i^:2) (w j^:2)",
        ),
        (
            call("grid_sampler_2d", x(2, 4, 5, 5), x(2, 3, 6, 2), 0, 0, False),
            "n c ? ?, n y0 y1 ? -> n c y0 y1",
        ),
    ],
    ids=lambda value: value.op if isinstance(value, Sample) else None,
)
def test_row_states_these_dims(sample: Sample, text: str) -> None:
    rule = default_rules.get(sample.op)
    assert rule is not None

    assert rule.dims_of(call_of(sample)) == text


@pytest.mark.parametrize(
    ("how", "keeps", "text", "linear"),
    [
        ("sum", True, "d0 n!, d0 i, d0 i -> d0 n!", "0+2"),
        ("sum", False, "d0 n!, d0 ?, d0 ? -> d0 n!", "0+2"),
        ("mean", True, "d0 n!, d0 ?, d0 ? -> d0 n!", "0+2"),
        ("amax", True, "d0 n!, d0 ?, d0 ? -> d0 n!", ""),
    ],
)
def test_scatter_reduce_adds_up_where_it_sums(
    how: str, keeps: bool, text: str, linear: str
) -> None:
    args = (x(4, 6), 1, ints(0, 6, 4, 6), x(4, 6), how)
    sample = call("scatter_reduce.two", *args, include_self=keeps)
    rule = default_rules.get(sample.op)
    assert rule is not None

    found = call_of(sample)
    assert (rule.dims_of(found), rule.linear_of(found)) == (text, linear)
