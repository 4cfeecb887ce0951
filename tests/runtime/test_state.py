"""What a program keeps is written in place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import partita as pt
from partita.compiler.errors import BadOptions
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.runtime.agree import from_first_rank
from partita.runtime.launch import launch
from partita.runtime.state import write


def test_a_shard_takes_its_own_memory_by_other_strides() -> None:
    groups: Any = SimpleNamespace(mesh=Mesh(tp=1), coordinates=(0,))
    shard = torch.tensor([[1.0, 2.0]]).as_strided((1, 2), (8, 1))
    write(shard, shard.view(-1).view(1, 2), Placement.parse("(S(1),)"), groups)
    assert shard.tolist() == [[1.0, 2.0]]


class Half(nn.Module):
    """A layer before another, which saves more than tensors."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def get_extra_state(self) -> str:
        """Return what is saved beside tensors."""
        return "version 3"

    def set_extra_state(self, state: str) -> None:
        """Take it over."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the loss of ``x`` ``[4, 4]``."""
        return self.second(self.first(x).tanh()).square().mean()


def load_on_rank(document: Any) -> list[Any]:
    """Return what is said of state dicts that do not fit, and what was written."""
    program = pt.compile(Half(), pt.Plan.from_dict(document))
    state = {n: x.zero_() for n, x in Half().state_dict().items() if "extra" not in n}
    found: list[Any] = []

    def refused(load: Any, *args: Any) -> None:
        with pytest.raises(BadOptions) as caught:
            load(*args)
        found.append(str(caught.value))

    text: Any = "no tensor"
    for name, value in (
        ("first.bias", torch.ones(5)),
        ("second.bias", torch.ones(5)),
        ("first.weight", text),
    ):
        refused(program.load_state_dict, {**state, name: value})
    some = {n: x for n, x in state.items() if "second.bias" not in n}
    refused(program.load_state_dict, some)
    found.append(all(p.any() for p in program.parameters()))
    found.append(program.load_state_dict({**some, "new": text}, strict=False))
    found.append([n for n, p in program.named_parameters() if p.any()])
    assert program.load_state_dict(Half().state_dict()) == ([], [])
    optimizer = torch.optim.Adam(program.parameters())
    program.step(torch.ones(4, 4))
    optimizer.step()
    own = program.optimizer_state_dict(optimizer)
    refused(program.load_optimizer_state_dict, optimizer, from_first_rank(lambda: own))
    return found


@pytest.mark.dist
@pytest.mark.parametrize("mesh", ["pp=2,dp=1"])
def test_all_ranks_take_a_state_dict_or_none(mesh: str) -> None:
    plan = pt.plan(Half(), torch.ones(4, 4), mesh=mesh)
    found = launch(load_on_rank, 2, (plan.to_dict(),), timeout_s=60)
    lost = found[0][-1]
    assert lost.startswith("optimizer state: that of 'second.weight' is missing; want")
    for rank, biases in zip(found, ([], ["second.bias"]), strict=True):
        assert rank == [
            "state dict: 'first.bias' has shape [5]; want [4]",
            "state dict: 'second.bias' has shape [5]; want [4]",
            "state dict: 'first.weight' is of type str; want a tensor",
            "state dict: 'second.bias' is missing",
            True,
            (["second.bias"], ["new"]),
            biases,
            lost,
        ]
