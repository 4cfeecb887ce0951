"""Parts that are taken by a tensor of one number are planned as torch takes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import partita as pt
from partita.compiler.capture.capture import capture
from partita.compiler.errors import CaptureFailed

Take = Callable[[Tensor, Tensor], Tensor]

TAKES: dict[str, Take] = {
    "first": lambda x, i: x[i[0]],
    "middle": lambda x, i: x[:, i[1]],
    "from the end": lambda x, i: x[..., i[0], :2],
    "two": lambda x, i: x[i[0], None, i[1]],
    "negative": lambda x, i: x[:, :, i[1] - 3],
    "beside places": lambda x, i: x[i[0], :, torch.tensor([1, 0])],
}


class Taking(nn.Module):
    """Takes a part of what a layer makes, counting its calls on demand."""

    def __init__(self, take: Take, *, is_counting: bool = False) -> None:
        super().__init__()
        self.layer, self.take = nn.Linear(5, 5), take
        self.calls: Tensor | None
        self.register_buffer("calls", torch.zeros(()) if is_counting else None)

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        """Return the loss of ``x`` ``[4, 3, 5]``; ``at`` are two places."""
        if self.calls is not None:
            self.calls.add_(1)
        return self.take(self.layer(x), at).square().mean()


def given() -> tuple[Tensor, Tensor]:
    """Return a batch, and places in it."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(4, 3, 5, generator=generator), torch.tensor([2, 1])


@pytest.mark.parametrize("name", TAKES)
def test_a_part_by_one_number(name: str) -> None:
    model = Taking(TAKES[name])
    options = pt.Options(pins={"x": "S(0)"})
    plan = pt.plan(model, *given(), mesh="dp=2", options=options)
    report = pt.verify(model, *given(), plan=plan)
    assert report.ok, report


@pytest.mark.parametrize("precision", [None, "bfloat16"])
def test_a_part_in_a_model_that_writes(precision: str | None) -> None:
    model = Taking(TAKES["middle"], is_counting=True)
    options = pt.Options(precision=precision)
    plan = pt.plan(model, *given(), mesh="dp=2", options=options)
    report = pt.verify(model, *given(), plan=plan)
    assert report.ok, report


def test_a_number_that_is_known_is_a_view() -> None:
    model = Taking(lambda x, i: x[:, torch.tensor(1)])
    program = capture(model, given(), {}).program
    assert "aten.index_select" not in str(program)


def _written(x: Tensor, i: Tensor) -> Tensor:
    x[i[0]].zero_()
    return x


def test_a_part_that_is_written_to_is_refused() -> None:
    with pytest.raises(CaptureFailed, match="written to, which would not reach x"):
        capture(Taking(_written), given(), {})
