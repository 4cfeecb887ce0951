"""The models of pipelines: equal parts of a batch make its loss and its gradients."""

from __future__ import annotations

import pytest
import torch
from tests.models.pipelines import BATCH, PIPELINES


@pytest.mark.parametrize("name", PIPELINES)
def test_mean_of_the_parts_is_the_whole(name: str) -> None:
    model, args, _ = PIPELINES[name]()
    whole = model(*args)
    assert whole.shape == ()
    want = torch.autograd.grad(whole, [*model.parameters()])
    parts = [
        model(*(x[i : i + BATCH // 4] for x in args))
        for i in range(0, BATCH, BATCH // 4)
    ]
    mean = torch.stack(parts).mean()
    torch.testing.assert_close(mean, whole)
    torch.testing.assert_close(torch.autograd.grad(mean, [*model.parameters()]), want)
