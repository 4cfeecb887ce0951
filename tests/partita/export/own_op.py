"""A model that calls an op of its own, and a plan of it."""

from __future__ import annotations

import torch
from torch import nn

import partita as pt
from partita.compiler.rules.rule import RuleSet

OP = "of_own_op.halve.default"


@torch.library.custom_op("of_own_op::halve", mutates_args=())
def halve(x: torch.Tensor) -> torch.Tensor:
    """Return half of ``x``."""
    return x / 2


@halve.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Halved(nn.Module):
    """Calls an op of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a number for ``x`` of any shape."""
        return halve(x).square().sum()


def halved() -> tuple[nn.Module, pt.Plan, RuleSet]:
    """Return the model, its plan on two ranks, and the rules that this is made with."""
    model, rules = Halved(), pt.default_rules.with_(pt.Rule(OP, "* -> *"))
    options = pt.Options(train=False, rules=rules)
    return model, pt.plan(model, torch.randn(4), mesh="tp=2", options=options), rules
