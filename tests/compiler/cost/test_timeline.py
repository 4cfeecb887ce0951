"""Totals, peaks and prints of timelines made by hand."""

from __future__ import annotations

from partita.compiler.cost.timeline import Category, Held, Timeline

STEP = Timeline(
    ("start", "mm/0", "relu/0", "sum/0"),
    (
        Held("w", Category.PARAMETERS, 100, 0, 3),
        Held("mm/0", Category.TEMPORARIES, 40, 1, 2),
        Held("relu/0", Category.TEMPORARIES, 40, 2, 3),
        Held("relu/0", Category.WORKSPACE, 3000, 2, 2),
        Held("sum/0", Category.TEMPORARIES, 4, 3, 3),
    ),
)


def test_bytes_are_held_from_first_to_last() -> None:
    assert STEP.bytes_at == (100, 140, 3180, 144)
    assert (STEP.peak, STEP.peak_bytes) == (2, 3180)


def test_what_is_alive_comes_largest_first() -> None:
    found = [(item.key, item.num_bytes) for item in STEP.alive(2)]
    assert found == [("relu/0", 3000), ("w", 100), ("mm/0", 40), ("relu/0", 40)]


def test_categories_add_up() -> None:
    parts = STEP.by_category(2)
    assert parts == {
        Category.PARAMETERS: 100, Category.TEMPORARIES: 80, Category.WORKSPACE: 3000
    }  # fmt: skip
    assert sum(parts.values()) == STEP.peak_bytes


def test_the_print_names_the_peak_and_its_largest() -> None:
    lines = str(STEP).splitlines()
    assert lines[0] == "peak    3.105 KiB at relu/0, moment 3 of 4"
    assert "     100 B  parameters" in lines
    assert lines[5] == "  2.93 KiB  relu/0 (workspace), moments 3 to 3"
