"""Gradients that do not lie in order are counted twice when they are handed over."""

from __future__ import annotations

import torch
from tests.compiler.search.hand_made import planner
from tests.compiler.search.test_memory_rows import least_held
from torch import Tensor, nn

from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import OutputRole
from partita.compiler.plan.search_result import SearchResult
from partita.compiler.search.decide import Found
from partita.compiler.search.holdings import find_holdings
from partita.compiler.search.keeping import keep
from partita.compiler.search.lies import Lies
from partita.compiler.search.solver import solve

NUM = 6
DRAWN = SearchResult("by hand", "drawn", None, 0.0)


class Experts(nn.Module):
    """Multiplies by the transposed of each weight, or by itself."""

    def __init__(self, is_transposed: bool) -> None:
        super().__init__()
        self.is_transposed = is_transposed
        self.weights = nn.ParameterList(torch.ones(2, 32, 32) for _ in range(NUM))

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = torch.bmm(x, weight.transpose(1, 2) if self.is_transposed else weight)
        return x.sum()


def copies(is_transposed: bool) -> int:
    """Return how many gradients are copied, having compared the count with the plan."""
    made = planner(Experts(is_transposed), torch.ones(2, 3, 32), mesh=Mesh(dp=1))
    posed = made.posed
    choices = solve(posed.problem, 10).choices
    held = find_holdings(posed, choices, posed.optimizer)
    found = Found(choices, DRAWN, most_alternatives=0)
    kept = keep(held, ())
    assert kept.peak_bytes == made.decide(found).predicted.bytes
    live = dict(zip(kept.moments, kept.live, strict=True))
    leaving = held.moments.of_call(held.num_calls)
    row = least_held(posed, posed.optimizer, leaving, choices, ())
    assert row == live[leaving]
    lies, nodes = Lies(posed), posed.problem.nodes
    return sum(
        lies.is_copied(index, nodes[index].choices[choice].signature.operands[0])
        for index, choice in enumerate(choices)
        if isinstance(posed.items[index], OutputRole)
    )


def test_gradients_of_what_is_transposed_are_copied() -> None:
    assert copies(is_transposed=True) == NUM


def test_gradients_that_lie_in_order_are_not() -> None:
    assert copies(is_transposed=False) == 0
