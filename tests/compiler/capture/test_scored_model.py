"""The loss is found in what the model returns, or the message says what to return."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.compiler.capture.small_models import Normed, Scale, batch
from torch import nn

from partita.compiler.capture.inputs import describe
from partita.compiler.capture.output_form import OutputForm
from partita.compiler.capture.scored_model import (
    LossFunction,
    ScoredModel,
    pick_loss,
)
from partita.compiler.errors import CaptureFailed

ONE = torch.tensor(1.0)


def first(outputs: Any) -> torch.Tensor:
    return outputs[0]


@pytest.mark.parametrize(
    ("outputs", "loss"),
    [
        (ONE, None),
        ({"loss": ONE, "y": torch.ones(3)}, None),
        (SimpleNamespace(loss=ONE), None),
        ((ONE, torch.ones(3)), first),
        (torch.ones(1, 1), None),
    ],
)
def test_loss_is_found(outputs: Any, loss: LossFunction | None) -> None:
    found = pick_loss(outputs, loss)
    assert found.shape == ()
    assert found == 1.0


@pytest.mark.parametrize(
    ("outputs", "loss", "message"),
    [
        (
            torch.ones(3),
            None,
            "the loss is no scalar: the model returned a tensor of shape [3] and "
            "torch.float32; want one floating number, e.g. Options(loss=lambda out: "
            "out.mean()) or --loss file.py:function",
        ),
        (
            torch.tensor(1),
            None,
            "the loss is no scalar: the model returned a tensor of shape [] and "
            "torch.int64; want one floating number, e.g. Options(loss=lambda out: "
            "out.mean()) or --loss file.py:function",
        ),
        (
            (torch.ones(3), ONE),
            None,
            "no loss: the model returned tuple; want a scalar tensor (return one, "
            "return an output with .loss, e.g. by passing labels, or give "
            "Options(loss=lambda out: out[1]), --loss file.py:function)",
        ),
        (
            [ONE, ONE],
            None,
            "no loss: the model returned list; want a scalar tensor (return one, "
            "return an output with .loss, e.g. by passing labels, or give "
            "Options(loss=...), --loss file.py:function)",
        ),
        (
            SimpleNamespace(loss=None),
            None,
            "no loss: the model's output .loss is NoneType; want a scalar tensor "
            "(return one, return an output with .loss, e.g. by passing labels, or give "
            "Options(loss=...), --loss file.py:function)",
        ),
        (
            {"loss": 3.0},
            None,
            "no loss: the model's output 'loss' is float; want a scalar tensor (return "
            "one, return an output with .loss, e.g. by passing labels, or give "
            "Options(loss=...), --loss file.py:function)",
        ),
        (
            (torch.ones(2),),
            first,
            "the loss is no scalar: Options(loss=...) returned a tensor of shape [2] "
            "and torch.float32; want one floating number, e.g. Options(loss=lambda "
            "out: out.mean()) or --loss file.py:function",
        ),
    ],
)
def test_what_is_no_loss_is_refused(
    outputs: Any, loss: LossFunction | None, message: str
) -> None:
    with pytest.raises(CaptureFailed) as caught:
        pick_loss(outputs, loss)
    assert str(caught.value) == message


def scored(model: nn.Module, loss: LossFunction | None, train: bool) -> Any:
    spec = describe(model, (batch(),), {})
    return ScoredModel(model, spec, loss, train, OutputForm())(batch())


def test_loss_is_parted_from_the_other_outputs() -> None:
    loss, outputs = scored(Normed(), None, train=True)
    assert list(loss) == ["loss"]
    assert list(outputs) == ["y", "nested.0", "nested.1.0"]
    assert loss["loss"].requires_grad
    assert not any(tensor.requires_grad for tensor in outputs.values())


def test_own_loss_leaves_all_outputs() -> None:
    loss, outputs = scored(Scale(), lambda found: found * 2, train=True)
    assert loss["loss"] == 2 * outputs["output"]


def test_inference_has_no_loss() -> None:
    loss, outputs = scored(Normed(), None, train=False)
    assert loss == {}
    assert list(outputs) == ["loss", "y", "nested.0", "nested.1.0"]


def test_modes_of_the_users_modules_are_left_alone() -> None:
    model = Normed().train()
    model.bn.eval()
    spec = describe(model, (batch(),), {})
    assert ScoredModel(model, spec, None, True, OutputForm()).training
    assert [model.training, model.bn.training] == [True, False]
