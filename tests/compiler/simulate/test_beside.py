"""A rank computes while messages pass that it does not wait for, and no others."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from partita.compiler.simulate.beside import play


@dataclass(frozen=True)
class Thing:
    seconds: float
    axis: str | None = None
    is_beside: bool = False
    key: str = ""
    is_behind: bool = False


def computes(seconds: float) -> Thing:
    return Thing(seconds)


def waits(seconds: float, axis: str = "dp") -> Thing:
    return Thing(seconds, axis)


def beside(seconds: float, axis: str = "dp") -> Thing:
    return Thing(seconds, axis, True)


def started(key: str, seconds: float, axis: str = "dp") -> Thing:
    return Thing(seconds, axis, True, key)


def behind(key: str, seconds: float = 0.0) -> Thing:
    return Thing(seconds, key=key, is_behind=True)


def drawn(seed: int) -> list[Thing]:
    rng = random.Random(seed)
    axes = (None, "dp", "tp")
    return [
        Thing(rng.random(), axis, axis is not None and rng.random() < 0.5)
        for axis in rng.choices(axes, k=40)
    ]


def test_computing_goes_on_while_a_message_passes() -> None:
    played = play([computes(1), beside(2), computes(3)], 1.0)
    assert played.times == ((0, 1), (1, 3), (1, 4))
    assert played.end_s == 4


def test_nothing_ends_before_its_messages_do() -> None:
    assert play([computes(1), beside(5), computes(3)], 1.0).end_s == 6


def test_a_message_slows_computing_while_it_passes() -> None:
    # In two seconds one is done, the second is done alone.
    assert play([beside(2), computes(2)], 0.5).times[1] == (0, 3)
    # What is done in time takes as much longer.
    assert play([beside(4), computes(1)], 0.5).times[1] == (0, 2)


def test_what_is_waited_for_stops_computing() -> None:
    assert play([waits(2), computes(3)], 1.0).end_s == 5


def test_what_waits_for_a_message_begins_when_that_is_there() -> None:
    things = [started("w", 3), computes(1), behind("w", 1), computes(1)]
    assert play(things, 1.0).times == ((0, 3), (0, 1), (3, 4), (4, 5))
    assert play([started("w", 1), computes(2), behind("w")], 1.0).end_s == 2


def test_it_waits_for_no_other_message() -> None:
    things = [started("v", 1), started("w", 3), computes(2), behind("v"), computes(1)]
    assert play(things, 1.0).times[-1] == (2, 3)


def test_messages_on_one_link_pass_one_after_another() -> None:
    things = [beside(4), computes(1), waits(1), computes(1)]
    assert play(things, 1.0).times == ((0, 4), (0, 1), (4, 5), (5, 6))


def test_messages_on_two_links_pass_at_once() -> None:
    things = [beside(4, "dp"), computes(1), waits(1, "tp"), computes(1)]
    assert play(things, 1.0).times == ((0, 4), (0, 1), (1, 2), (2, 3))
    shared = {"dp": "wire", "tp": "wire"}
    assert play(things, 1.0, shared).times[2] == (4, 5)


@pytest.mark.parametrize("seed", range(20))
def test_it_takes_the_sum_at_most_and_the_busiest_at_least(seed: int) -> None:
    things = drawn(seed)
    in_all = sum(thing.seconds for thing in things)
    alone = play(things, 0.0)
    assert alone.end_s == pytest.approx(in_all)
    by_share = [play(things, share).end_s for share in (0.0, 0.3, 0.6, 0.9, 1.0)]
    assert by_share == sorted(by_share, reverse=True)
    for axis in (None, "dp", "tp"):
        own = sum(thing.seconds for thing in things if thing.axis == axis)
        assert own <= by_share[-1] * (1 + 1e-12)
    assert by_share[-1] < in_all


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_items_begin_in_their_order(share: float) -> None:
    things = drawn(7)
    for kind in (True, False):  # what computes, and each link
        begins = [
            start
            for thing, (start, _) in zip(things, play(things, share).times, strict=True)
            if (thing.axis is None) is kind and thing.axis != "tp"
        ]
        assert begins == sorted(begins)
