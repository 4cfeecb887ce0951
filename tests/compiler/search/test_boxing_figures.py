"""Figures of boxings: of those that there are, each found once."""

from __future__ import annotations

from math import inf

import numpy as np
import torch

from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.boxing_figures import BoxingFigures

TYPE = TensorType((4, 8), torch.float32)
WHOLE, ROWS, COLUMNS = (Placement.parse(f"({word},)") for word in ("B", "S(0)", "S(1)"))


def test_each_boxing_that_there_is_is_found_once() -> None:
    asked: list[tuple[Placement, Placement]] = []

    def of_one(type: TensorType, made: Placement, wanted: Placement) -> float:
        asked.append((made, wanted))
        return 3.0

    figures = BoxingFigures(of_one)
    made, wanted = [WHOLE, ROWS], [WHOLE, COLUMNS]
    prices = np.array([[0.0, 1.0], [2.0, inf]])
    for _ in range(2):
        found = figures.table(TYPE, made, wanted, prices)
        assert found.tolist() == [[0.0, 3.0], [3.0, 0.0]]
    assert asked == [(WHOLE, COLUMNS), (ROWS, WHOLE)]
    figures.table(TYPE, wanted, made, prices.T)
    assert len(asked) == 4, "another question"
