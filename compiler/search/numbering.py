"""Numbers for equal things, many at once: who shares a number is equal.

They are what ``numbers.setdefault(thing, len(numbers))`` gives in a loop, but for their
order: programs of many layers have tens of thousands of nodes, which numpy counts.
"""

from __future__ import annotations

import numpy as np

from partita.compiler.search.model import Ints, compact

_MOST = 2**62  # of what a row's columns are told by as one number


def numbered(*columns: Ints) -> Ints:
    """Return a number per row, from 0 on without a gap; equal rows have one.

    Args:
        columns: of the rows, of one length, with nothing below 0.

    >>> numbered(np.array([3, 5, 3]), np.array([1, 1, 1]))
    array([0, 1, 0])
    """
    codes, span = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        most = int(column.max(initial=0)) + 1
        if span * most >= _MOST:
            codes, column = compact(codes)[1], compact(column)[1]
            span, most = (int(each.max(initial=0)) + 1 for each in (codes, column))
        codes, span = codes * most + column, span * most
    return compact(codes)[1]


def numbered_sequences(values: Ints, start: Ints) -> Ints:
    """Return a number per sequence, from 0 on without a gap; equal ones have one.

    Args:
        values: of all sequences, one behind the other, with nothing below 0.
        start: where in it each begins, and where the last one ends.

    >>> numbered_sequences(np.array([7, 8, 8, 7, 8]), np.array([0, 2, 3, 5]))
    array([1, 0, 1])
    """
    lengths = np.diff(start)
    found, count = np.zeros(len(lengths), np.int64), 0
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        columns = [values[start[rows] + at] for at in range(length)]
        own = numbered(*columns) if columns else np.zeros(len(rows), np.int64)
        found[rows] = count + own
        count += int(own.max()) + 1
    return found


def first_of(numbers: Ints) -> Ints:
    """Return where each number is first met.

    >>> first_of(np.array([1, 0, 1]))
    array([1, 0])
    """
    return np.unique(numbers, return_index=True)[1]


def starts_of(lengths: Ints) -> Ints:
    """Return where sequences of these lengths begin, and where the last one ends.

    >>> starts_of(np.array([2, 0, 3]))
    array([0, 2, 2, 5])
    """
    return np.concatenate([[0], lengths.cumsum()]).astype(np.int64)


def stretches(begin: Ints, lengths: Ints) -> Ints:
    """Return the places in stretches that begin at some places, one behind the other.

    >>> stretches(np.array([4, 9]), np.array([3, 1]))
    array([4, 5, 6, 9])
    """
    start = starts_of(lengths)
    return np.repeat(begin - start[:-1], lengths) + np.arange(start[-1])
