"""What a rank of a stage holds, by what it is of."""

from __future__ import annotations

import pytest

from partita.compiler.search.stage_cost import StageHeld, most_together


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
    held = StageHeld(
        10, 4, closing, {"parameters": 7, "temporaries": 3}, {"parameters": 7}
    )
    assert held.by_part(live) == {"parameters": 7, "temporaries": 3, **more}
    assert sum(held.by_part(live).values()) == held.bytes(live)


def test_of_stages_of_a_rank_one_runs_at_a_time() -> None:
    small = StageHeld(10, 4, 0, {"parameters": 2, "temporaries": 8}, {"parameters": 2})
    large = StageHeld(9, 1, 0, {"parameters": 5, "temporaries": 4}, {"parameters": 5})
    assert most_together([(small, 1)]) == small.by_part(1)
    assert most_together([(small, 2), (large, 3)]) == {
        "parameters": 7,
        "temporaries": 8,
        "microbatches ahead": 4 + 3,
    }


def test_stages_of_a_rank_hold_no_more_than_all_at_once() -> None:
    lasting = StageHeld(6, 1, 0, {"parameters": 6}, {"parameters": 6})
    assert most_together([(lasting, 1), (lasting, 1)]) == {"parameters": 12}
