"""The smallest conflict among demands."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from partita.compiler.search.conflict import smallest_conflict

CONFLICTS = st.lists(st.frozensets(st.integers(0, 7), min_size=1), max_size=4)


@given(CONFLICTS)
def test_what_is_returned_conflicts_and_nothing_less_does(
    conflicts: list[frozenset[int]],
) -> None:
    def is_refused(some: Sequence[int]) -> bool:
        return any(conflict <= set(some) for conflict in conflicts)

    found = smallest_conflict(range(8), is_refused)
    assert found == sorted(found)
    assert is_refused(found) == bool(conflicts)
    for demand in found:
        assert not is_refused([other for other in found if other != demand])


def test_earlier_demands_are_preferred() -> None:
    assert smallest_conflict("abc", lambda some: len(some) >= 2) == ["a", "b"]


def test_who_is_refused_whatever_he_asks_has_no_conflict() -> None:
    assert smallest_conflict("abc", lambda _: True) == []


def test_few_sets_are_asked_about() -> None:
    asked: list[Sequence[int]] = []

    def is_refused(some: Sequence[int]) -> bool:
        asked.append(some)
        return {100, 200} <= set(some)

    assert smallest_conflict(range(256), is_refused) == [100, 200]
    assert len(asked) <= 32  # 2 k log2(n / k) + 2 k
    assert len(set(map(tuple, asked))) == len(asked), "a set was asked about twice"
