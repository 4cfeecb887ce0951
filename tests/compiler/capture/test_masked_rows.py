"""Rows that are written where a mask says have a backward of known shapes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from partita.compiler.capture.capture import capture


class Placed(nn.Module):
    """Puts rows that are learned among those that are given."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor, mask: Tensor, rows: Tensor) -> Tensor:
        x = x * self.w
        x[mask] = rows * (self.w[: rows.shape[-1]] if rows.ndim else self.w[0])
        return x.exp().sum()


@pytest.mark.parametrize("shape", [(3, 4), (3, 1), (4,), (1, 4), (1, 1), ()])
def test_rows_are_written_where_a_mask_says(shape: tuple[int, ...]) -> None:
    mask = torch.tensor([[True, False, True], [False, False, True]])
    model, x, rows = Placed(), torch.randn(2, 3, 4), torch.randn(shape)
    program = capture(model, (x, mask, rows), {}).program
    feeds = {"w": model.w, "x": x, "mask": mask, "rows": rows}
    feeds["loss_scale"] = torch.ones(())
    values = [feeds.get(r.name, program.constants.get(r.name)) for r in program.inputs]
    with torch.no_grad():
        loss, gradient = program.graph_module(*values)
    wanted = model(x, mask, rows)
    wanted.backward()
    torch.testing.assert_close(loss, wanted.detach())
    torch.testing.assert_close(gradient, model.w.grad)
