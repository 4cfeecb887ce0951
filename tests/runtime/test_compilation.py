"""How programs run: by what was asked for, or by what the plan is like."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import partita as pt
from partita.compiler.errors import BadOptions
from partita.runtime.compilation import Compilation


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).square().mean()


def test_a_way_to_run_is_read_by_its_name() -> None:
    assert [Compilation.parse(each.value) for each in Compilation] == list(Compilation)


def test_another_way_to_run_is_one_clear_line() -> None:
    with pytest.raises(BadOptions) as bad:
        Compilation.parse("fast")
    assert (
        str(bad.value)
        == "compilation is 'fast'; want eager, regions, whole, cuda-graph, auto"
    )


def planned(mesh: pt.Mesh, **options: Any) -> pt.Plan:
    asked: dict[str, Any] = {"hardware": "cpu-gloo-free", "fuse": True} | options
    return pt.plan(Model(), torch.randn(8, 4), mesh=mesh, options=pt.Options(**asked))


@pytest.mark.parametrize(
    ("mesh", "options", "name"),
    [
        (pt.Mesh(dp=1), {}, "auto"),
        (pt.Mesh(dp=1), {"fuse": False}, "regions"),
        (pt.Mesh(dp=2), {}, "auto"),
        (pt.Mesh(dp=2), {"pins": {"layers.0.weight": "S(0)"}}, "regions"),
        (pt.Mesh(dp=1), {"memory": "1 GiB"}, "regions"),
        (pt.Mesh(dp=1), {"recompute": ("layers.*/*",)}, "regions"),
        (pt.Mesh(pp=2, dp=1), {}, "regions"),
    ],
    ids=[
        "alone",
        "op by op",
        "with messages",
        "gathered",
        "within a limit",
        "made again",
        "in stages",
    ],
)
def test_what_fuses_with_room_in_one_stage_is_compiled_as_a_whole(
    mesh: pt.Mesh, options: dict[str, Any], name: str
) -> None:
    plan = planned(mesh, **options)
    assert Compilation.AUTO.for_plan(plan) == name


def test_what_is_asked_for_is_done_whatever_the_plan() -> None:
    plan = planned(pt.Mesh(dp=1))
    for each in set(Compilation) - {Compilation.AUTO}:
        assert each.for_plan(plan) is each
