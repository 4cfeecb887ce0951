"""What is kept and what is made again: against every subset of small programs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from math import inf

import pytest

from partita.compiler.search.holdings import Holding, Holdings
from partita.compiler.search.keeping import (
    Keeping,
    choose_keeping,
    keep,
    keeping_one_by_one,
    least_keeping,
)
from partita.compiler.search.makers import Makers
from partita.compiler.search.parts import Clock

STATE = 10


def chain(num_layers: int, num_bytes: int = 4) -> Holdings:
    """Return a chain of calls; the backward goes back along it, using each result."""
    enters = Holding(["x"], 0, 0, -1, inf, [], 0)
    found = [enters]
    for layer in range(num_layers):
        used = layer + 1 if layer < num_layers - 1 else layer
        uses = [2 * num_layers - 1 - layer]
        key, source = f"call{layer}", layer
        found.append(
            Holding([key], layer + 1, num_bytes, layer, 1.0, [source], used, uses)
        )
    return Holdings(tuple(found), STATE, 0, 2 * num_layers, num_layers)


def test_a_limit_that_is_missed_by_little_is_kept_to() -> None:
    held = chain(3, 20_000)
    limit = keep(held, ()).peak_bytes - 1
    found = choose_keeping(held, limit, Clock.of(5.0))
    assert found.again
    assert found.peak_bytes <= limit


def tangle(seed: int) -> Holdings:
    """Return random calls of which the backward uses some, in reverse order."""
    rng = random.Random(seed)
    count = rng.randint(3, 6)
    found = [Holding(["x"], 0, 0, -1, inf, [], 0)]
    for call in range(count):
        sources = rng.sample(range(len(found)), min(len(found), rng.randint(1, 2)))
        for source in sources:
            found[source].forward = max(found[source].forward, call)
        uses = [2 * count - 1 - call] if rng.random() < 0.7 else []
        size, seconds = rng.randint(1, 9), float(rng.randint(1, 5))
        found.append(
            Holding([f"call{call}"], call + 1, size, call, seconds, sources, call, uses)
        )
    return Holdings(tuple(found), STATE, 0, 2 * count, count)


def simulated_peak(held: Holdings, again: frozenset[str]) -> int:
    """Run the step: before each call what is made again for it, in order, then it."""
    made = {one.maker: one for one in held.holdings}
    needs: dict[int, list[tuple[int, int]]] = {}
    works: dict[int, tuple[int, int]] = {}
    for maker, one in reversed(made.items()):
        needs[maker] = [(call, held.num_calls) for call in one.backward]
        for user in works:
            if maker in made[user].sources:
                needs[maker].append(works[user])
        if one.keys[0] in again and needs[maker]:
            works[maker] = min(needs[maker])[0], one.first
    peak = 0
    for now in (
        *works.values(),
        *((at, held.num_calls) for at in range(held.num_calls)),
    ):
        total = STATE
        for maker, one in made.items():
            forward = one.forward, held.num_calls
            last = max([forward, *needs[maker]])
            is_there = (one.first, held.num_calls) <= now <= last
            if maker in works:
                is_there &= not forward < now < works[maker]
            total += one.num_bytes * is_there
        peak = max(peak, total)
    return peak


def subsets(held: Holdings) -> Iterator[frozenset[str]]:
    keys = [one.keys[0] for one in held.holdings if one.seconds < inf]
    for chosen in product([False, True], repeat=len(keys)):
        yield frozenset(
            key for key, is_chosen in zip(keys, chosen, strict=True) if is_chosen
        )


def seconds_of(held: Holdings, again: frozenset[str]) -> float:
    return sum(one.seconds for one in held.holdings if one.keys[0] in again)


def best_of_all(held: Holdings, limit: int) -> float:
    return min(
        (
            seconds_of(held, again)
            for again in subsets(held)
            if simulated_peak(held, again) <= limit
        ),
        default=inf,
    )


def check_claims(held: Holdings, found: Keeping) -> None:
    assert found.peak_bytes == simulated_peak(held, found.again)
    assert found.seconds == seconds_of(held, found.again)


def test_with_room_all_is_kept() -> None:
    held = chain(4)
    room = simulated_peak(held, frozenset())
    found = choose_keeping(held, room, Clock.of(60))
    check_claims(held, found)
    assert not found.again
    tight = choose_keeping(held, room - 1, Clock.of(60))
    check_claims(held, tight)
    assert len(tight.again) == 1
    assert tight.peak_bytes < room


@pytest.mark.parametrize("seed", range(60))
def test_the_cheapest_way_that_fits(seed: int) -> None:
    held = tangle(seed)
    peaks = sorted({simulated_peak(held, again) for again in subsets(held)})
    for limit in peaks[:: max(1, len(peaks) // 4)]:
        found = choose_keeping(held, limit, Clock.of(60))
        check_claims(held, found)
        assert found.peak_bytes <= limit
        assert found.seconds == best_of_all(held, limit)


def test_where_nothing_fits_the_least_is_said() -> None:
    held = chain(5)
    found = choose_keeping(held, 1, Clock.of(60))
    check_claims(held, found)
    assert found.peak_bytes == min(simulated_peak(held, a) for a in subsets(held))


def test_without_time_all_is_kept() -> None:
    held = chain(30)
    found = choose_keeping(held, 40, Clock.of(0))
    check_claims(held, found)
    assert not found.again
    assert found.peak_bytes > 40


def test_many_alike_are_counted_together_and_fit() -> None:
    """Of 420 equal calls, each of what enters, as many work again as must."""
    held = chain(420)
    for one in held.holdings[1:]:
        one.alike, one.sources = 0, [0]
    peak = keep(held, ()).peak_bytes
    found = choose_keeping(held, peak // 2, Clock.of(60))
    assert found.peak_bytes <= peak // 2
    assert 205 <= found.seconds <= 220, "half of them are enough"
    check_claims(held, found)


@pytest.mark.parametrize("seed", range(3))
def test_one_by_one_less_is_made_again(seed: int) -> None:
    rng = random.Random(seed)
    kinds = [(rng.randint(20, 60), float(rng.randint(1, 9))) for _ in range(4)]
    held = chain(110 * len(kinds))
    for number, one in enumerate(held.holdings[1:]):
        one.alike = number % len(kinds)
        one.num_bytes, one.seconds = kinds[one.alike]
    limit = keep(held, ()).peak_bytes // 2
    known = choose_keeping(held, limit, Clock.of(60))
    found = keeping_one_by_one(held, known, limit, Clock.of(60))
    check_claims(held, found)
    assert found.peak_bytes <= limit
    assert found.seconds < known.seconds
    assert keeping_one_by_one(held, found, limit, Clock.of(60)) is found


def test_few_are_not_chosen_again(monkeypatch: pytest.MonkeyPatch) -> None:
    held = chain(30)
    limit = keep(held, ()).peak_bytes // 2
    known = choose_keeping(held, limit, Clock.of(60))
    assert known.again
    monkeypatch.setattr("partita.compiler.search.keeping_program.run_highs", None)
    assert keeping_one_by_one(held, known, limit, Clock.of(60)) is known


def stack(num_blocks: int) -> Holdings:
    """Return blocks that make much of what the one before hands on, and add to that.

    The backward uses both. To add again is cheap, but takes what it is added to.
    """
    found = [Holding(["x"], 0, 0, -1, inf, [], 0)]
    count = 2 * num_blocks
    for block in range(num_blocks):
        at, call = len(found), 2 * block
        handed_on = found[-1]
        handed_on.forward = call + 1
        handed_on.backward = [2 * count - 1 - call]
        uses = [2 * count - 2 - call]
        much = Holding([f"much{block}"], at, 9, call, 1.0, [at - 1], call + 1, uses)
        sources = [at - 1, at]
        added = Holding([f"add{block}"], at + 1, 3, call + 1, 0.1, sources, call + 1)
        much.alike, added.alike = "much", "add"
        found += [much, added]
    found[-1].backward = [count]
    return Holdings(tuple(found), STATE, 0, 2 * count, count)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_what_all_blocks_would_make_again_is_kept_in_one_place(share: float) -> None:
    held = stack(250)
    peaks = [keep(held, ()).peak_bytes]
    peaks.append(keep(held, [f"much{block}" for block in range(250)]).peak_bytes)
    every = keep(held, [one.keys[0] for one in held.holdings[1:]])
    assert every.peak_bytes > peaks[1], "making all again saves little"
    limit = int(share * peaks[0] + (1 - share) * peaks[1])
    found = choose_keeping(held, limit, Clock.of(30))
    check_claims(held, found)
    assert found.peak_bytes <= limit
    assert found.seconds <= 1.05 * 250 * (1 - share) + 2


@pytest.mark.parametrize("seed", range(40))
def test_where_nothing_fits_about_the_least_of_all_is_found(seed: int) -> None:
    held, clock = tangle(seed), Clock.of(60)
    makers = [one.keys[0] for one in held.holdings if one.seconds < inf]
    choices = product([False, True], repeat=len(makers))
    least = min(
        keep(
            held, [key for key, again in zip(makers, own, strict=True) if again]
        ).peak_bytes
        for own in choices
    )
    limit = STATE // 2
    known = choose_keeping(held, limit, clock)
    found = least_keeping(held, known, limit, clock)
    assert least <= found.peak_bytes <= known.peak_bytes
    assert found.peak_bytes <= 1.1 * least


def test_less_than_what_is_held_anyway_is_not_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = chain(40)
    for one in held.holdings[1:]:
        one.alike, one.sources = 0, [0]
    known = choose_keeping(held, 1, Clock.of(60))
    assert known.peak_bytes == Makers(held).apart.held.max()
    monkeypatch.setattr("partita.compiler.search.keeping_program.run_highs", None)
    assert least_keeping(held, known, 1, Clock.of(60)) == known
