"""CTC losses are planned as torch computes them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import partita as pt
from partita.compiler.errors import CaptureFailed

STEPS, BATCH, CLASSES = 6, 4, 5
TARGETS = torch.tensor([[1, 2, 2], [3, 4, 1], [2, 1, 4], [4, 4, 4]])
SIZES = torch.tensor([3, 2, 3, 1])
LENGTHS = torch.tensor([6, 5, 2, 6])  # the third has no room for its target
LOSS = "partita.ctc_loss/0"


class Spelling(nn.Module):
    """Spells sequences, whose lengths are inputs or ``given``."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__()
        self.head = nn.Linear(8, CLASSES)
        self.given, self.options = given, options

    def forward(self, x: Tensor, targets: Tensor, *lengths: Tensor) -> Tensor:
        """Return the loss of ``x`` ``[batch, steps, 8]``."""
        scores = self.head(x).log_softmax(-1).transpose(0, 1)
        given: Any = lengths or self.given
        return functional.ctc_loss(scores, targets, *given, **self.options).mean()


class Alone(Spelling):
    def forward(self, x: Tensor, targets: Tensor, *lengths: Tensor) -> Tensor:
        scores = self.head(x[0]).log_softmax(-1)
        return nn.CTCLoss(reduction="sum")(scores, targets[0], (STEPS,), (3,))


def batch() -> Tensor:
    return torch.randn(BATCH, STEPS, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_every_reduction(reduction: str) -> None:
    torch.manual_seed(0)
    model = Spelling(reduction=reduction, zero_infinity=True)
    args = (batch(), TARGETS, LENGTHS, SIZES)
    pins = {LOSS: "S(0)", "x": "S(0)"}
    plan = pt.plan(model, *args, mesh="dp=2", options=pt.Options(pins=pins))
    report = pt.verify(model, *args, plan=plan)
    assert report.ok, report


@pytest.mark.parametrize(
    ("model", "args"),
    [
        (Spelling(), (TARGETS.flatten()[:9], torch.full((4,), 6), SIZES)),
        (Spelling((6, 5, 6, 4), (3, 2, 3, 1), blank=4), (TARGETS % 4,)),
        (Spelling([6] * 4, SIZES.tolist()), (TARGETS.int(),)),
        (Alone(), (TARGETS,)),
    ],
)
def test_every_form_of_targets_and_lengths(
    model: Spelling, args: tuple[Tensor, ...]
) -> None:
    report = pt.verify(
        model, batch(), *args, plan=pt.plan(model, batch(), *args, mesh="dp=2")
    )
    assert report.ok, report


def test_microbatches_and_mixed_precision() -> None:
    model, args = Spelling(zero_infinity=True), (batch(), TARGETS, LENGTHS, SIZES)
    for options in (pt.Options(microbatches=2), pt.Options(precision="bfloat16")):
        plan = pt.plan(model, *args, mesh="dp=2", options=options)
        report = pt.verify(model, *args, plan=plan)
        assert report.ok, report


class Padded(Spelling):
    """Spells what is padded: the loss is given all targets in one row."""

    def forward(self, x: Tensor, targets: Tensor, *lengths: Tensor) -> Tensor:
        mask = targets >= 0
        picked = targets.masked_select(mask)
        return super().forward(x, picked, lengths[0], mask.sum(-1))


class PickedFirst(Padded):
    def forward(self, x: Tensor, targets: Tensor, *lengths: Tensor) -> Tensor:
        picked = torch.masked_select(targets, targets >= 0)
        return self.head(x).mean() * picked.shape[0]


PADDED = torch.tensor([[1, 2, 2], [3, 4, -100], [-100, 1, 4], [-100, 4, -100]])


def test_targets_that_a_mask_picks() -> None:
    model = Padded()
    args = (batch(), PADDED, torch.full((4,), 6))
    pins = {LOSS: "S(0)", "x": "S(0)", "targets": "S(0)"}
    plan = pt.plan(model, *args, mesh="dp=2", options=pt.Options(pins=pins))
    report = pt.verify(model, *args, plan=plan)
    assert report.ok, report


def test_targets_that_a_mask_picks_are_cut_in_microbatches() -> None:
    model, args = Padded(), (batch(), PADDED, torch.full((4,), 6))
    options = pt.Options(microbatches=2)
    plan = pt.plan(model, *args, mesh="dp=2", options=options)
    report = pt.verify(model, *args, plan=plan)
    assert report.ok, report


def test_what_a_mask_picks_has_no_shape_elsewhere() -> None:
    args = (batch(), PADDED, torch.full((4,), 6))
    with pytest.raises(CaptureFailed, match="a shape depends on values"):
        pt.plan(PickedFirst(), *args, mesh="dp=2")
