"""Equal things have one number, as a loop with a dict would give them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from partita.compiler.search.edges import Edges
from partita.compiler.search.model import Ints
from partita.compiler.search.numbering import (
    first_of,
    numbered,
    numbered_sequences,
    starts_of,
    stretches,
)

SMALL = st.integers(0, 3)
LARGE = st.integers(0, 2**40)


def ints(numbers: Sequence[int]) -> Ints:
    return np.array(numbers, dtype=np.int64)


def check(numbers: Ints, things: Sequence[Hashable]) -> None:
    """Check that equal things, and they alone, have one number, without gaps."""
    assert len(numbers) == len(things)
    pairs = set(zip(numbers.tolist(), things, strict=True))
    assert len(pairs) == len(set(things)) == len(set(numbers.tolist()))
    assert set(numbers.tolist()) == set(range(len(pairs)))


@given(st.lists(st.tuples(SMALL, LARGE, LARGE | SMALL)))
def test_equal_rows_have_one_number(rows: list[tuple[int, int, int]]) -> None:
    rows += rows[::2]
    columns = [ints([row[at] for row in rows]) for at in range(3)]
    check(numbered(*columns), rows)


@given(st.lists(st.lists(SMALL, max_size=4)))
def test_equal_sequences_have_one_number(sequences: list[list[int]]) -> None:
    start = starts_of(ints([len(each) for each in sequences]))
    values = ints([value for each in sequences for value in each])
    check(numbered_sequences(values, start), [*map(tuple, sequences)])


@given(st.lists(st.lists(SMALL, max_size=4)))
def test_stretches_are_the_places_of_sequences(sequences: list[list[int]]) -> None:
    lengths = ints([len(each) for each in sequences])
    begin = starts_of(lengths)[:-1]
    places = [
        at + own for at, n in zip(begin, lengths, strict=True) for own in range(n)
    ]
    assert stretches(begin, lengths).tolist() == places
    order = np.arange(len(sequences))[::-1]
    backwards = [value for each in sequences[::-1] for value in each]
    values = ints([value for each in sequences for value in each])
    assert values[stretches(begin[order], lengths[order])].tolist() == backwards


def test_numbers_are_first_met_somewhere() -> None:
    assert first_of(ints([2, 0, 2, 1, 0])).tolist() == [1, 3, 0]


def test_uses_are_counted_by_node_and_operand() -> None:
    edges = Edges.of([(), ((0, 1), (0, 0)), (), ((1, 0),)])
    assert edges.start.tolist() == [0, 0, 2, 2, 3]
    assert edges.user.tolist() == [1, 1, 3]
    assert edges.position.tolist() == [0, 1, 0]
    assert edges.source.tolist() == [0, 0, 1]
    assert edges.result.tolist() == [1, 0, 0]
    assert Edges.of([]).start.tolist() == [0]
