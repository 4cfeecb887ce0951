"""What a boxing holds while it is made, beside what it is of and what comes of it."""

from __future__ import annotations

import pytest
import torch
from tests.compiler.search.hand_made import machine, planner
from torch import Tensor, nn

from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.search.boxed import Boxed, Boxings

WHOLE = 64 * 8 * 4


class Halved(nn.Module):
    """Scales rows, and takes half of every one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        return ((x * self.weight)[:, :8] + 1.0).sum()


def boxed(op: str, made: str, want: str, ranks: int = 2) -> Boxed:
    """Return what boxing the result of an op takes, of 64 rows of 8."""
    hardware = machine(bytes_per_s=1e6)
    posed = planner(
        Halved(), torch.randn(64, 16), mesh=Mesh(dp=ranks), hardware=hardware
    ).posed
    (index,) = (
        at
        for at, node in enumerate(posed.problem.nodes)
        if op in node.key and "~" not in node.key
    )
    boxings = Boxings(posed)
    return boxings.of((index, 0), Placement.parse(made), Placement.parse(want))


@pytest.mark.parametrize(
    ("made", "want", "found"),
    [
        ("(P(sum),)", "(B,)", Boxed(WHOLE, 0, 0, 0)),
        ("(S(0),)", "(B,)", Boxed(2 * WHOLE, 0, 0, 0)),  # gloo gathers twice
        (
            "(S(1),)",
            "(B,)",
            Boxed(2 * WHOLE, WHOLE, 0, 0),
        ),  # what was gathered is there
        ("(P(sum),)", "(S(0),)", Boxed(3 * WHOLE // 2, 0, 0, 0)),
        ("(B,)", "(S(0),)", Boxed(WHOLE // 2, 0, 0, 0)),  # so that the rest may go
    ],
)
def test_a_boxing_holds_what_its_links_do(made: str, want: str, found: Boxed) -> None:
    assert boxed("add", made, want) == found


def test_a_slice_of_what_is_held_anyway_is_a_view() -> None:
    assert boxed("x", "(B,)", "(S(0),)") == Boxed(0, 0, 0, 0)


def test_what_lies_in_no_order_is_packed_first() -> None:
    found = boxed("slice", "(P(sum),)", "(S(0),)")
    assert found == Boxed(WHOLE, 2 * WHOLE, 0, 0)


@pytest.mark.parametrize(
    ("made", "want", "rows"),
    [
        ("(S(0),)", "(B,)", 2),  # the first 64 rows of three times 22
        ("(S(1),)", "(B,)", 0),  # which is brought into order, without padding
        ("(P(sum),)", "(S(0),)", 0),  # the first rank has none
    ],
)
def test_a_copy_that_is_a_part_of_a_buffer_keeps_all_of_it(
    made: str, want: str, rows: int
) -> None:
    assert boxed("add", made, want, ranks=3).padding_bytes == rows * 8 * 4
