"""A program compiled as a whole writes new values of buffers where they lie."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

import partita as pt
from partita.runtime import compile_together

aten = torch.ops.aten


class Counted(nn.Module):
    """Normalized, with buffers that take over each other's values."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 1)
        self.now = nn.Buffer(torch.zeros(8))
        self.before = nn.Buffer(torch.ones(8))
        self.ever = nn.Buffer(torch.zeros(2, 8))

    def forward(self, x: Tensor) -> Tensor:
        """Return a scalar of ``[batch, 8]``."""
        now = self.now.clone()
        self.now.copy_(self.before)
        self.before.copy_(now)
        self.ever.add_(x.detach().mean(0))
        return F.softplus(self.last(self.norm(x) + self.before)).mean()


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[fx.Graph]:
    """The graphs that are compiled."""
    found: list[fx.Graph] = []
    compile_graph = compile_together.compile_graph

    def noted(module: fx.GraphModule, *rest: object) -> object:
        found.append(copy.deepcopy(module.graph))
        return compile_graph(module, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(compile_together, "compile_graph", noted)
    return found


def trained(compilation: str, microbatches: int = 1) -> list[Tensor]:
    """Return losses of three steps and of a forward, and then the buffers."""
    torch.manual_seed(0)
    model, x = Counted(), torch.randn(8, 8)
    options = pt.Options(microbatches=microbatches)
    plan = pt.plan(model, x, mesh=pt.Mesh(dp=1), options=options)
    program = pt.compile(model, plan, compilation=compilation)
    losses = [program.step(x * n) for n in range(3)]
    losses.append(program(x).detach())
    return [*losses, *(b for _, b in program.named_buffers())]


@pytest.mark.parametrize("microbatches", [1, 2])
def test_buffers_are_what_they_are_op_by_op(microbatches: int) -> None:
    wanted = trained("eager", microbatches)

    torch.testing.assert_close(trained("whole", microbatches), wanted)


def test_what_is_made_is_written_and_what_another_buffer_takes_over_leaves(
    graphs: list[fx.Graph],
) -> None:
    trained("whole")
    step, forward = graphs
    for graph in (step, forward):
        written = graph.find_nodes(op="call_function", target=aten.copy_.default)
        # the statistics of the norm, how many there were, and the sum of all inputs
        assert len(written) == 4
        (left,) = graph.output_node().args
        assert list(left)[:6].count(None) == 4  # type: ignore[arg-type]


def test_microbatches_read_what_was_there_before_the_step(
    graphs: list[fx.Graph],
) -> None:
    trained("whole", microbatches=2)

    assert not any(
        graph.find_nodes(op="call_function", target=aten.copy_.default)
        for graph in graphs
    )
