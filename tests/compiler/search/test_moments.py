"""Moments are numbered in the order in which they come."""

from __future__ import annotations

import pytest

from partita.compiler.search.moments import Moments


@pytest.mark.parametrize("moments", [Moments(2), Moments(2, 4, 2), Moments(3, 2, 0)])
def test_what_is_made_again_comes_before_its_call_and_boxings_around_it(
    moments: Moments,
) -> None:
    forward, before, behind = moments
    order: list[int] = []
    for call in range(-1, 4):
        own = [moments.of_again(call, maker) for maker in range(forward)]
        places = [
            *(moments.boxed_before(call, at) for at in range(before // 2)),
            moments.place_of(call),
            *(moments.boxed_behind(call, at) for at in range(behind // 2)),
        ]
        assert {moments.call_of(place) for place in places} == {call}
        around = [moments.of_place(place) for place in places]
        assert [moments.is_boxing(m) for m in around] == [
            moment != moments.of_call(call) for moment in around
        ]
        assert {moments.maker_at(moment) for moment in around} == {None}
        assert [moments.maker_at(moment) for moment in own] == [*range(forward)]
        assert {moments.call_at(moment) for moment in own + around} == {call}
        order += own + around
    assert order == sorted(set(order))
