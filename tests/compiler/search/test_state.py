"""What stays on a rank: a tensor as it is stored, and what its optimizer has of it."""

from __future__ import annotations

import pytest
import torch
from tests.compiler.search.hand_made import planner
from torch import Tensor, nn

from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.search.problem import Choice
from partita.compiler.search.state import State, States

WHOLE, HALF = Placement.parse("(B,)"), Placement.parse("(S(0),)")


class Scaled(nn.Module):
    """A parameter that is trained, one that is frozen, and a buffer, of 64 bytes."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.trained = nn.Parameter(torch.ones(4, 4))
        self.frozen = nn.Parameter(torch.ones(4, 4), requires_grad=False)
        self.register_buffer("scale", torch.ones(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.trained @ self.frozen * self.scale).sum()


def states(optimizer: str, **pins: str) -> dict[str, tuple[States, int]]:
    """Return whom to ask, and where, by the key of what enters."""
    model = planner(Scaled(), torch.ones(4, 4), mesh=Mesh(tp=2), pins=pins)
    found = States(model.posed, optimizer)
    nodes = model.posed.problem.nodes
    entering = sorted(found.entering | found.fed)
    return {nodes[index].key: (found, index) for index in entering}


def choice(
    found: States, index: int, stored: Placement, updated: Placement | None = None
) -> Choice:
    """Return the choice that stores something so, and updates it in these pieces."""
    (chosen,) = (
        choice
        for choice in found.posed.problem.nodes[index].choices
        if choice.signature.results[0] == stored
        and (choice.held is None or choice.held.optimizer == (updated or stored))
    )
    return chosen


@pytest.mark.parametrize(
    ("optimizer", "stored", "want"),
    [
        ("sgd", WHOLE, State(64, 64)),
        ("adamw", WHOLE, State(3 * 64, 64)),
        ("adamw", HALF, State(3 * 32, 32)),
    ],
)
def test_moments_are_held_of_what_is_trained(
    optimizer: str, stored: Placement, want: State
) -> None:
    found, index = states(optimizer)["parameter:trained"]
    assert found.of(index, choice(found, index, stored)) == want


@pytest.mark.parametrize("key", ["parameter:frozen", "buffer:scale", "input:x"])
def test_what_is_not_trained_is_held_as_it_is_stored(key: str) -> None:
    found, index = states("adamw")[key]
    assert found.of(index, choice(found, index, HALF)) == State(32, None)


def test_what_is_fed_does_not_stay() -> None:
    found, index = states("adamw")["input:x"]
    assert found.fed == {index}
    assert index not in found.entering


@pytest.mark.parametrize("pins", [{}, {"trained": "storage=(B,); optimizer=(S(0),)"}])
def test_what_the_optimizer_has_elsewhere_is_a_copy_more(pins: dict[str, str]) -> None:
    found, index = states("adamw", **pins)["parameter:trained"]
    assert found.of(index, choice(found, index, WHOLE, HALF)) == State(64 + 3 * 32, 32)
