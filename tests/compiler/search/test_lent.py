"""What is handed over is kept for the backward where something is made again of it."""

from __future__ import annotations

from itertools import product
from math import inf

import pytest

from partita.compiler.search.holdings import Holding, Holdings
from partita.compiler.search.keeping import choose_keeping, keep
from partita.compiler.search.lent import Lent, find_lent
from partita.compiler.search.parts import Clock


def handed_over(num_live: int) -> Holdings:
    """Return two calls, the first of what is handed over; the backward uses both."""
    found = (
        Holding(["x"], 0, 8, -1, inf, [], 0),
        Holding(["first"], 1, 8, 0, 1.0, [0], 1, [3]),
        Holding(["last"], 2, 8, 1, 3.0, [1], 1, [2]),
    )
    return Holdings(found, 10, 0, 4, 2, num_live)


def test_what_is_made_again_of_what_is_handed_over_frees_nothing() -> None:
    held = handed_over(3)
    ways: tuple[list[str], ...] = [], ["first"], ["last"]
    free, first, last = (keep(held, again).live for again in ways)
    assert free == (58, 58, 58, 50, 42, 42)
    assert first == (58, 66, 58, 58, 50, 42, 42)
    assert last == (42, 42, 42, 42, 34, 26, 26)


@pytest.mark.parametrize("num_live", [1, 2, 3])
def test_the_cheapest_that_fits_is_chosen(num_live: int) -> None:
    held = handed_over(num_live)
    ways = [
        keep(held, [key for key, is_taken in zip(keys, taken, strict=True) if is_taken])
        for keys in [("first", "last")]
        for taken in product([False, True], repeat=2)
    ]
    for limit in {way.peak_bytes for way in ways}:
        best = min(way.seconds for way in ways if way.peak_bytes <= limit)
        found = choose_keeping(held, limit, Clock.of(5.0))
        assert found.peak_bytes <= limit
        assert found.seconds == best


def test_what_is_lent_is_kept_until_its_user_is_made_again() -> None:
    held = handed_over(3)
    assert find_lent(held, {0: [1], 1: [2]}) == [Lent(0, [1])]
    calls, first = map(held.moments.of_call, range(5)), {1: held.moments.of_again(3, 0)}
    sizes = [Lent(0, [1]).bytes_at(moment, held, first) for moment in calls]
    assert sizes == [16, 24, 24, 16, 16]
    assert Lent(0, [1]).bytes_at(first[1], held, first) == 24
    assert Lent(0, [1]).bytes_at(1, held, {}) == 0


def test_what_frees_nothing_is_not_tried_one_by_one() -> None:
    """Six calls of what is handed over cost little; made again, they free nothing."""
    count, found = 6, list[Holding]()
    for at in range(count):
        found.append(Holding([f"x{at}"], 2 * at, 8, -1, inf, [], at))
        uses = [2 * count + 1 - at]
        found.append(Holding([f"call{at}"], 2 * at + 1, 8, at, 1.0, [2 * at], at, uses))
    found.append(Holding(["last"], 2 * count, 8, count, 50.0, [], count, [count + 1]))
    held = Holdings(tuple(found), 10, 0, 2 * count + 2, count + 1, 2)
    limit = keep(held, ["last"]).peak_bytes
    assert limit < keep(held, ()).peak_bytes
    assert choose_keeping(held, limit, Clock.of(5.0)).again == {"last"}
