"""Tensors of a model that share memory are refused if a program would part them."""

from __future__ import annotations

import pytest
import torch
from tests.compiler.capture import small_models as small
from torch import Tensor, nn

from partita.compiler.capture.capture import capture
from partita.compiler.errors import CaptureFailed


class Autoencoder(nn.Module):
    """Its second weight is the first one transposed, in the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(4, 2), nn.Linear(2, 4)
        self.up.weight = nn.Parameter(self.down.weight.t())

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.down(x)).square().mean()


class Row(small.Scale):
    """Keeps a row of a buffer as another buffer, and writes to one if asked for."""

    table: Tensor
    row: Tensor

    def __init__(self, is_written: bool) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(3, 4))
        self.register_buffer("row", self.table[1])
        self.is_written = is_written

    def forward(self, x: Tensor) -> Tensor:
        if self.is_written:
            self.table.add_(1.0)
        return (x * self.w * self.row).sum()


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (Autoencoder(), "'down.weight' and 'up.weight'"),
        (Row(True), "'table' and 'row'"),
    ],
)
def test_two_that_are_changed_apart_are_named(model: nn.Module, names: str) -> None:
    with pytest.raises(CaptureFailed) as caught:
        capture(model, (small.batch(),), {})
    assert str(caught.value) == (
        f"{names} share memory without being one tensor, and a program would change "
        "them apart; keep one of them, and transpose or slice it in forward"
    )


def test_what_is_not_changed_may_share_memory() -> None:
    assert capture(Row(False), (small.batch(),), {}).program.outputs
    model = Autoencoder()
    assert capture(model, (small.batch(),), {}, train=False).program.outputs


@pytest.mark.parametrize("dim", [0, 1])
def test_slices_of_one_memory_are_welcome(dim: int) -> None:
    model, flat = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.randn(8, 8)
    parts = flat.narrow(1 - dim, 0, 4).chunk(2, dim)
    for layer, part in zip(model, parts, strict=True):
        layer.weight = nn.Parameter(part)
    found = capture(model, (small.batch(),), {}, loss=torch.sum)
    assert len(found.program.trained) == 4
