"""What is made again is not in memory in between: measured in the running program."""

from __future__ import annotations

import torch
from tests.runtime.live_bytes import LiveBytes
from torch import Tensor, nn

import partita as pt

BATCH, WIDTH, HIDDEN, DEPTH = 64, 16, 128, 6


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.drop(torch.tanh(self.up(x))))


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


def measured(*patterns: str) -> tuple[LiveBytes, list[Tensor]]:
    """Return what was alive in a step on one rank, and the gradients."""
    torch.manual_seed(0)
    model, x = Deep(), torch.randn(BATCH, WIDTH)
    options = pt.Options(recompute=patterns)
    plan = pt.plan(model, x, mesh=pt.Mesh(tp=1), options=options)
    program = pt.compile(model, plan, device="cpu")
    with LiveBytes() as live:
        program.step(x)
    found = [parameter.grad for parameter in program.parameters()]
    return live, [gradient for gradient in found if gradient is not None]


def test_saved_memory_falls_to_what_leaves_the_blocks() -> None:
    kept, gradients = measured()
    again, same = measured("blocks.*")
    for one, other in zip(gradients, same, strict=True):
        assert torch.equal(one, other)
    hidden, out, seed = BATCH * HIDDEN * 4, BATCH * WIDTH * 4, 8
    # At the turn: the loss is there, the gradient of it spreads out.
    turn = [
        next(n for op, n in live.after if op == "aten.expand.default")
        for live in (kept, again)
    ]
    mask, loss = hidden // 4, 4
    assert turn[0] == DEPTH * (2 * hidden + mask + out) + loss  # tanh, dropout
    assert turn[1] == DEPTH * out + loss + seed  # numbers are drawn again
    assert again.now == kept.now  # the gradients and the loss
    assert again.peak <= again.now + 4 * hidden  # one block beside them
    assert kept.peak > 2 * again.peak
