"""What a rank of a stage holds, by what it is of."""

from __future__ import annotations

import pytest

from partita.compiler.search.stage_cost import StageHeld


@pytest.mark.parametrize(
    ("closing", "live", "more"),
    [
        (0, 1, {}),
        (0, 3, {"microbatches ahead": 8}),
        (15, 1, {"sums on their way": 5}),
        (15, 2, {"microbatches ahead": 4, "sums on their way": 1}),
        (15, 3, {"microbatches ahead": 8}),
    ],
)
def test_parts_add_up(closing: int, live: int, more: dict[str, int]) -> None:
    held = StageHeld(10, 4, closing, {"parameters": 7, "temporaries": 3})
    assert held.by_part(live) == {"parameters": 7, "temporaries": 3, **more}
    assert sum(held.by_part(live).values()) == held.bytes(live)
