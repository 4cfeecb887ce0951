"""Calls of the ops that cut a dim, or join one out of pieces."""

from __future__ import annotations

from collections.abc import Iterator

from tests.compiler.rules.rule_values import call, x

from partita.testing.prover import Sample


def cuts() -> Iterator[Sample]:
    yield call("select.int", x(4, 6, 8), 1, 3)
    yield call("select.int", x(4), -1, 3)
    yield call("select_backward", x(4, 8), [4, 6, 8], 1, 3)
    yield call("select_backward", x(), [4], 0, 3)
    yield call("slice.Tensor", x(4, 6), 0, 0, 4, 1)
    yield call("slice.Tensor", x(4, 6), 1, 2, 6, 2)
    yield call("slice_backward", x(4, 3), [4, 6], 1, 2, 5, 1)
    yield call("slice_backward", x(4, 6), [4, 6], 1, 0, 2**63 - 1, 1)
    yield call("slice_scatter", x(4, 6), x(4, 2), 1, 2, 4)
    yield call("select_scatter", x(4, 6), x(4), 1, 2)
    yield call("constant_pad_nd", x(4, 6), [1, -1], 2.0)
    yield call("constant_pad_nd", x(4, 6), [0, 0, 0, 2])
    yield call("cat", [x(4, 2), x(4, 6), x(4, 2)], 1)
    yield call("cat", [x(4, 2), x(4, 2)], -1)
    yield call("cat", [x(4, 2), x(4, 0), x(4, 6)], 1)
    yield call("cat", [x(0), x(4, 6)], 1)
    yield call("split_with_sizes", x(4, 16), [4, 8, 4], 1)
    yield call("split_with_sizes", x(8, 3), [4, 4])
    yield call("split_with_sizes", x(4, 8), [8, 0], 1)
