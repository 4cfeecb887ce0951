"""Models of the zoo with dropout on, as people train them."""

from __future__ import annotations

from tests.models.zoo import ZOO, Built
from torch import nn


def with_dropout(name: str, part: float = 0.1) -> Built:
    """Return a model of the zoo that drops ``part`` wherever it can, attention too."""
    model, args, kwargs = ZOO[name]()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = part
        elif hasattr(module, "attention_dropout"):
            vars(module)["attention_dropout"] = part
    return model, args, kwargs
