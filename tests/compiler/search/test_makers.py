"""What is held follows from what is kept, and what is made again, maker by maker."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tests.compiler.search.test_keeping import tangle

from partita.compiler.search.makers import Makers, Needs


def counted(
    makers: Makers, again: dict[int, bool], needs: Needs, known: Needs | None
) -> list[float]:
    """Add up at every moment what each maker holds by itself."""
    moments = makers.live(again).moments
    total = makers.apart.at(moments).tolist()
    for at, moment in enumerate(moments.tolist()):
        for maker, (kept, made) in makers.held_at(moment, known).items():
            if maker in needs.first:
                total[at] += made if again[maker] else kept
    return total


@pytest.mark.parametrize("live", [1, 3])
@pytest.mark.parametrize("seed", range(20))
def test_parts_add_up_to_what_is_held(seed: int, live: int) -> None:
    rng = random.Random(seed)
    makers = Makers(replace(tangle(seed), num_live=live))
    for _ in range(8):
        drawn = {maker: rng.random() < 0.5 for maker in makers.every}
        first = makers.needs_of(drawn).first
        again = {maker: drawn[maker] and maker in first for maker in drawn}
        needs = makers.needs_of(again)
        found = makers.live(again)
        held = found.at(found.moments).tolist()
        assert counted(makers, again, needs, needs) == held
        least = counted(makers, again, needs, None)
        assert all(low <= high for low, high in zip(least, held, strict=True))
