"""An input that is pinned to a split stays split on its way through the program."""

from __future__ import annotations

import torch
from tests.compiler.search.hand_made import planner
from torch import Tensor, nn

from partita.compiler.ir.mesh import Mesh
from partita.compiler.search.pose import Posed


class Chain(nn.Module):
    """Ops that carry the batch on, one that moves it, and one that sums it up."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return ((x @ self.w).relu().t().exp()).sum()


def posed(pin: str | None) -> Posed:
    pins = {} if pin is None else {"x": pin}
    return planner(Chain(), torch.ones(8, 4), mesh=Mesh(tp=2), pins=pins).posed


def wanted(posed: Posed, key: str) -> set[str]:
    """Return how the choices of a call take its first operand."""
    (node,) = [node for node in posed.problem.nodes if node.key == key]
    return {str(choice.signature.operands[0]) for choice in node.choices}


def test_every_op_that_carries_the_dim_keeps_it_split() -> None:
    found, free = posed("S(0)"), posed(None)
    for key, text in {
        "mm/0": "(S(0),)",
        "relu/0": "(S(0),)",
        "t/0": "(S(0),)",
        "exp/0": "(S(1),)",  # the transposed batch
        "sum/0": "(S(1),)",
        "relu/0~grad/threshold_backward/0": "(S(0),)",
    }.items():
        assert wanted(found, key) == {text}, key
        assert len(wanted(free, key)) > 1, key


def test_an_input_pinned_whole_leaves_its_users_free() -> None:
    assert "(S(0),)" in wanted(posed("B"), "relu/0")
    assert "(B,)" in wanted(posed("B"), "relu/0")
