"""Late uses: who uses a tensor at a moment or later, views and what they are of."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.compiler.search.hand_made import planner
from tests.compiler.search.test_limited import posed_layers
from torch import Tensor, nn

from partita.compiler.ir.mesh import Mesh
from partita.compiler.search.late_uses import LateUses
from partita.compiler.search.memory_price import MemoryPrice
from partita.compiler.search.pose import Posed


class Halved(nn.Module):
    """Uses half of what a product makes, as a view of it, in both halves."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[:, :8].tanh().square().mean()


@pytest.fixture(scope="module")
def halved() -> Posed:
    return planner(Halved(), torch.randn(8, 16), mesh=Mesh(tp=2)).posed


def index_of(posed: Posed, ending: str) -> int:
    """Return the first node whose key ends so."""
    keys = [node.key for node in posed.problem.nodes]
    return next(at for at, key in enumerate(keys) if key.endswith(ending))


def test_there_is_a_path_until_the_last_use_and_none_behind_it() -> None:
    posed = posed_layers(Mesh(tp=2))
    late = posed.known(LateUses)
    calls = late.times.calls
    backward = [call.time for call in calls.values() if not call.is_forward]
    seen = 0
    for value in late.made:
        assert late.path(value, late.times.time(value)) == [], "as it is made"
        users = [calls[node] for node, _ in late.users.get(value, ()) if node in calls]
        if users and not any(user.is_view for user in users):
            ends = [late.times.end(n) for n, _ in late.users[value] if n not in calls]
            last = max([*ends, *(user.time for user in users)])
            assert late.path(value, last) is not None
            assert late.path(value, last + 1) is None
            seen += last in backward
    assert seen


def test_what_sees_a_part_is_charged_for_the_whole(halved: Posed) -> None:
    late = halved.known(LateUses)
    made, part = index_of(halved, "addmm/0"), index_of(halved, "slice.Tensor/0")
    assert late.times.calls[part].is_view
    assert late.roots[part, 0] == ((made, 0), 2.0)
    tanh = late.times.calls[index_of(halved, "tanh/0")]
    prices = MemoryPrice(halved, "adamw", [tanh.time]).problem(1e-9).held
    assert prices is not None
    assert prices.sources[part, 0] == 2.0
    assert prices.sources[made, 0] == 1.0


def test_it_is_found_once_for_all_choices_and_prices() -> None:
    posed = posed_layers(Mesh(tp=2))
    priced = MemoryPrice(posed, "adamw", [5]).problem(1e-9)
    other = replace(posed, problem=priced)
    assert other.known(LateUses) is posed.known(LateUses)
    assert posed_layers(Mesh(tp=2)).known(LateUses) is not posed.known(LateUses)
