"""What boxings take whose messages share a buffer."""

from __future__ import annotations

import numpy as np
import pytest
from tests.compiler.search.hand_made import machine

import partita as pt
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.buffer_prices import in_buffers
from partita.compiler.search.fold import Fold
from partita.compiler.search.problem import Problem
from partita.compiler.search.problem_prices import prices_on

TYPE = TensorType.parse("f32[64, 32]")
PARTIAL, WHOLE, ROWS = map(Placement.parse, ("P(sum)", "B", "S(0)"))


def _unpriced(type: TensorType, made: Placement, wanted: Placement) -> float:
    raise AssertionError


HARDWARE = machine(memory_bytes_per_s=1e9)
FOLD = Fold.none(Problem((), (), pt.Mesh(dp=4), _unpriced))


@pytest.mark.parametrize(
    ("made", "wanted", "copied"),
    [
        (PARTIAL, WHOLE, 0),  # lies side by side in place of its copy
        (PARTIAL, ROWS, 64 * 32 * 4),
        (ROWS, WHOLE, 5 * 16 * 32 * 4),
    ],
)
def test_what_is_scattered_or_gathered_is_copied(
    made: Placement, wanted: Placement, copied: int
) -> None:
    alone_s = prices_on(FOLD, HARDWARE)(TYPE, made, wanted)
    shared_s = in_buffers(FOLD, HARDWARE)(TYPE, made, wanted)
    parted_s = HARDWARE.device.launch_s if made == ROWS else 0.0
    assert shared_s - alone_s == pytest.approx(2 * copied / 1e9 + parted_s, abs=1e-15)


def test_a_table_says_what_one_price_says() -> None:
    prices = in_buffers(FOLD, HARDWARE)
    made, wanted = (PARTIAL, WHOLE, ROWS), (WHOLE, ROWS)
    table = prices.table(TYPE, made, wanted)
    each = [[0.0 if a == b else prices(TYPE, a, b) for b in wanted] for a in made]
    np.testing.assert_allclose(table, each)
