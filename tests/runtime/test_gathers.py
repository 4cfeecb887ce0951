"""All-gathers over gloo: what they make, and what they are called."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.autograd.profiler import profile

from partita.runtime.groups import start
from partita.runtime.launch import launch

pytestmark = pytest.mark.dist

LONG = "allgather_into_tensor_coalesced"


def gather() -> tuple[torch.Tensor, list[str]]:
    """Gather a tensor that is not contiguous."""
    start("cpu")
    x = (torch.arange(6.0).reshape(3, 2) + 10 * dist.get_rank()).t()
    c10d, group = torch.ops._c10d_functional, dist.group.WORLD
    calls = profile(use_kineto=False)
    assert group is not None
    with calls:
        begun = c10d.all_gather_into_tensor(x, 2, group.group_name)
        gathered = c10d.wait_tensor(begun)
    return gathered, [event.name for event in calls.function_events or ()]


def test_gathers_are_called_by_no_long_name() -> None:
    part = torch.arange(6.0).reshape(3, 2)
    want = torch.cat([part.t(), part.t() + 10])
    for gathered, names in launch(gather, 2):
        assert torch.equal(gathered, want)
        assert any("allgather_base" in name for name in names)
        assert not any(LONG in name for name in names)
