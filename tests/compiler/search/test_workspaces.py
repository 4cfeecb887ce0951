"""What kernels take for themselves counts while they run, and at no other time."""

from __future__ import annotations

import torch
from tests.compiler.search.hand_made import machine, planner
from torch import Tensor, nn

from partita.compiler.ir.mesh import Mesh
from partita.compiler.search.holdings import find_holdings
from partita.compiler.search.solver import solve
from partita.compiler.search.workspaces import Workspaces


class Counted(nn.Module):
    """Adds up booleans, which are made integers of 8 bytes for that."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).sum() * (x > 0).sum()


def test_a_kernel_s_workspace_is_held_during_its_call_alone() -> None:
    hardware = machine(flops_per_s=1e8, bytes_per_s=1e6)
    made = planner(Counted(), torch.randn(64, 8), mesh=Mesh(dp=1), hardware=hardware)
    posed = made.posed
    choices = solve(posed.problem, 10).choices
    workspaces = Workspaces(posed)
    taken = {
        node.key: workspaces.of(index, node.choices[choice])
        for index, (node, choice) in enumerate(
            zip(posed.problem.nodes, choices, strict=True)
        )
    }
    assert max(taken.values()) == 64 * 8 * 8
    assert sum(map(bool, taken.values())) == 1
    held = find_holdings(posed, choices, "adamw")
    (own,) = (one for one in held.holdings if not one.keys)
    assert own.num_bytes == 64 * 8 * 8
    assert (own.forward, own.backward) == (own.first, [])
