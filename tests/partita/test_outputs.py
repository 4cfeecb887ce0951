"""A program returns what the model returns, in the model's own structure."""

from __future__ import annotations

from typing import Any

import torch
from tests.models.zoo import ZOO
from torch import nn

import partita as pt


class Nested(nn.Module):
    """Returns a tuple of a tensor and a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return tensors of ``x`` ``[2, 4]`` and a constant."""
        y = self.linear(x)
        return y, {"double": 2 * y, "note": "kept out", "parts": [y[0], y[1]]}


def test_nested_outputs_come_back_nested() -> None:
    model, x = Nested().eval(), torch.randn(2, 4)
    options = pt.Options(train=False)
    plan = pt.plan(model, x, mesh=pt.Mesh(tp=1), options=options)
    first, rest = pt.compile(model, plan, device="cpu")(x)
    wanted, others = model(x)
    torch.testing.assert_close(first, wanted)
    torch.testing.assert_close(rest["double"], others["double"])
    torch.testing.assert_close(rest["parts"], others["parts"])
    assert rest["note"] == others["note"]


def test_transformers_outputs_keep_their_fields() -> None:
    model, args, kwargs = ZOO["gpt2"]()
    plan = pt.plan(model, *args, mesh=pt.Mesh(tp=1), **kwargs)
    found = pt.compile(model, plan, device="cpu")(*args, **kwargs)
    wanted = model(*args, **kwargs)
    torch.testing.assert_close(found.logits, wanted.logits)
    torch.testing.assert_close(found.loss, wanted.loss)


def test_a_loss_alone_comes_back_alone() -> None:
    model, args, kwargs = ZOO["mlp"]()
    plan = pt.plan(model, *args, mesh=pt.Mesh(tp=1), **kwargs)
    found = pt.compile(model, plan, device="cpu")(*args, **kwargs)
    torch.testing.assert_close(found, model(*args, **kwargs))


class Scored(nn.Module):
    """Returns its loss beside a tensor under the name that a bare loss has."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return tensors of ``x`` ``[2, 4]``."""
        y = self.linear(x)
        return {"loss": y.square().mean(), "output": y}


def test_an_output_named_output_is_kept_beside_the_loss() -> None:
    model, x = Scored(), torch.randn(2, 4)
    plan = pt.plan(model, x, mesh=pt.Mesh(tp=2))
    report = pt.verify(model, x, plan=plan)
    assert report.ok, str(report)
    assert "output:output" in report.errors

    found = pt.compile(model, pt.plan(model, x, mesh=pt.Mesh(tp=1)), device="cpu")(x)
    wanted = model(x)
    torch.testing.assert_close(found["output"], wanted["output"])
    torch.testing.assert_close(found["loss"], wanted["loss"])
