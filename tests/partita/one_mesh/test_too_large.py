"""A refusal of a memory limit says how much more is needed."""

from __future__ import annotations

import pytest

from partita.one_mesh.too_large import too_large

MIB = 1 << 20


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        (
            (20 * MIB, 64 * MIB, 8 * MIB),
            "memory: the limit is 20 MiB on a rank, and no plan was found that needs "
            "less than 64 MiB",
        ),
        (
            (64 * MIB - 1, 64 * MIB, 8 * MIB),
            "memory: the limit is 67108863 B on a rank, and no plan was found that "
            "needs less than 67108864 B",
        ),
        (
            (64 * MIB - 1, 80 * MIB, 64 * MIB),
            "memory: the limit is 67108863 B on a rank, and no plan was found that "
            "needs less than 83886080 B; parameters, optimizer states and inputs take "
            "67108864 B at the least",
        ),
    ],
)
def test_sizes_that_print_alike_are_told_to_the_byte(
    sizes: tuple[int, int, int], told: str
) -> None:
    refusal = too_large(*sizes)
    assert str(refusal) == told
    assert (refusal.least_bytes, refusal.state_bytes) == sizes[1:]
