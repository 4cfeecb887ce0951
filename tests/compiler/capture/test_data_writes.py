"""What a model writes to what is not trained stays, by ``.data`` as in place."""

from __future__ import annotations

import re

import pytest
import torch
from tests.models.momentum import FOLLOW, MomentumEncoder
from tests.slow import slow
from torch import Tensor, nn

import partita as pt
from partita.compiler.capture.capture import capture
from partita.compiler.errors import CaptureFailed

NAMES = ["key.0.weight", "key.0.bias", "key.2.weight", "key.2.bias"]


IN_PARTS, IN_PIECES = pt.Options(microbatches=2), pt.Options(pins={"*.weight": "S(0)"})


@pytest.mark.parametrize(
    ("way", "mesh", "options"),
    [
        *((way, "dp=2", IN_PARTS) for way in FOLLOW),
        *((way, "dp=2", IN_PIECES) for way in FOLLOW),
        ("in place", "pp=2", IN_PARTS),
        *(slow(way, "pp=2", IN_PARTS) for way in FOLLOW if way != "in place"),
    ],
)
def test_a_part_that_follows_another_is_planned(
    way: str, mesh: str, options: pt.Options
) -> None:
    torch.manual_seed(0)
    model, x, y = MomentumEncoder(way), torch.randn(8, 8), torch.randn(8, 8)
    plan = pt.plan(model, x, y, mesh=mesh, options=options)
    assert [name for name, b in plan.buffers.items() if b.mutated] == NAMES
    report = pt.verify(model, x, y, plan=plan)
    assert report.ok, report
    assert {f"buffer:{name}" for name in NAMES} <= set(report.errors)


class Kept(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        self.seen.data = self.seen + y.detach().sum(0)
        return y.square().mean()


def test_other_data_of_a_buffer_is_its_new_value() -> None:
    model, x = Kept(), torch.randn(4, 4)
    report = pt.verify(model, x, plan=pt.plan(model, x, mesh="dp=2"))
    assert report.ok, report
    assert "buffer:seen" in report.errors


class Grown(Kept):
    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        self.seen.data = y.detach()
        return y.square().mean()


def test_data_of_another_shape_is_refused() -> None:
    with pytest.raises(CaptureFailed) as caught:
        capture(Grown(), (torch.ones(2, 4),), {})
    assert str(caught.value) == (
        ".data of a tensor becomes torch.float32 of shape [2, 4], it was torch.float32 "
        "of shape [4]; a step may change only its values"
    )


def test_no_trained_parameter_is_written_by_its_data() -> None:
    model = MomentumEncoder("other data").requires_grad_(True)
    with pytest.raises(CaptureFailed) as caught:
        capture(model, (torch.ones(2, 8), torch.ones(2, 8)), {})
    assert re.fullmatch(
        r"\S+\.py:\d+: the model writes to its parameter 'key.0.bias' in place, and so "
        r"does the optimizer; write to it behind optimizer.step\(\), make it a buffer, "
        "or set requires_grad=False",
        str(caught.value),
    )
