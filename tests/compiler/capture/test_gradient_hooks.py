"""What hooks do to gradients inside of a model is done, however it is traced."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.compiler.capture import small_models as small
from torch import Tensor, nn

from partita.compiler.capture.capture import capture
from partita.compiler.errors import CaptureFailed
from partita.compiler.ir.mesh import Mesh
from partita.planning import Options, plan
from partita.verifying.verification import verify


def quarter(gradient: Tensor) -> Tensor:
    return gradient * 0.25


class Hooked(nn.Module):
    """A layer, and a hook on what it makes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layer(x).sin()
        hidden.register_hook(quarter)
        return hidden.square().mean()


class Bag(Hooked):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.EmbeddingBag(10, 4), nn.Linear(4, 4))


class Shifted(Hooked):
    """Uses a tensor that it keeps in a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = torch.ones(4)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.shift)


def of_layer() -> nn.Module:
    model = small.Chain("a", "b")
    model.blocks["b"].register_full_backward_hook(
        lambda _, grads, __: (quarter(grads[0]),)
    )
    return model


def before_layer() -> nn.Module:
    model = Bag()
    model.layer[1].register_full_backward_pre_hook(
        lambda _, grads: (quarter(grads[0]),)
    )
    return model


@pytest.mark.parametrize("make", [Hooked, of_layer])
def test_in_mixed_precision(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model, x = make(), torch.randn(8, 4)
    options = Options(precision="bfloat16")
    report = verify(model, x, plan=plan(model, x, mesh=Mesh(tp=2), options=options))
    assert report.ok, str(report)


@pytest.mark.parametrize("make", [Bag, before_layer])
def test_with_a_bag_of_embeddings(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model, ids = make(), torch.randint(10, (4, 3))
    report = verify(model, ids, plan=plan(model, ids, mesh=Mesh(tp=2)))
    assert report.ok, str(report)


def test_with_a_tensor_that_no_trace_has_they_are_refused() -> None:
    with pytest.raises(CaptureFailed, match="no input, parameter or buffer"):
        capture(Shifted(), (torch.ones(8, 4),), {})
