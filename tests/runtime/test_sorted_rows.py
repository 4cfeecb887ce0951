"""Rows are brought in order once, however many products of their groups there are."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

import partita as pt
from partita.compiler.capture.grouped import multiply, outer
from partita.compiler.capture.torch_private import static_fake_mode
from partita.runtime import sorted_rows
from partita.runtime.sorted_rows import sort_rows

aten = torch.ops.aten
SHAPES = (12, 8), (3, 8, 8), (3, 4, 8), (12, 1)
MEMBER = torch.arange(12).unsqueeze(1) * 7 % 5 == torch.arange(3)
"""Rows of three groups and of none, in no order."""


def trained(
    x: Tensor, up: Tensor, down: Tensor, score: Tensor, member: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what experts make, one number a row, and gradients of their weights."""
    both = multiply(x, up, member)
    gate, value = both[:, :4], both[:, 4:]
    hidden = gate.sigmoid() * value
    out = multiply(hidden, down, member) * score
    back = multiply(out, down.transpose(1, 2), member)
    back = torch.cat([back * value, back * gate.sigmoid()], 1)
    turned = x.permute(1, 0).permute(1, 0)
    return out, outer(hidden, out, member), outer(turned, back, member)


def traced() -> tuple[fx.GraphModule, list[Tensor]]:
    given = [torch.randn(shape) for shape in SHAPES]
    return make_fx(trained)(*given, MEMBER), [*given, MEMBER]


def in_order() -> fx.GraphModule:
    module, given = traced()
    mode = static_fake_mode()
    fakes = [mode.from_tensor(tensor) for tensor in given]
    sort_rows(module, fakes, mode)
    return module


def test_numbers_are_what_they_were() -> None:
    _, given = traced()

    torch.testing.assert_close(tuple(in_order()(*given)), trained(*given))


def test_one_kernel_multiplies_all_groups_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fits(rows: Tensor, other: Tensor) -> bool:
        return rows.dtype is other.dtype

    monkeypatch.setattr(sorted_rows, "fits_kernel", fits)
    _, given = traced()
    module = in_order()
    own = [node for node in module.graph.nodes if "sorted" in str(node.target)]

    assert not own
    torch.testing.assert_close(tuple(module(*given)), trained(*given))


def test_only_what_enters_and_what_leaves_changes_its_order() -> None:
    graph = in_order().graph
    taken = graph.find_nodes(op="call_function", target=aten.index_select.default)
    left = [node for node in graph.nodes if "grouped" in str(node.target)]

    # the rows, their scores and what is made of both, which leaves
    assert len(taken) == 3
    assert not left


def test_a_graph_without_groups_stays_as_it_is() -> None:
    module = make_fx(torch.relu)(torch.randn(3))
    before = str(module.graph)
    sort_rows(module, [torch.randn(3)], static_fake_mode())

    assert str(module.graph) == before


class Experts(nn.Module):
    """Each row by the expert that scores best, as transformers' mixtures do."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(16, 4)
        self.up = nn.Parameter(torch.randn(4, 16, 32) / 4)
        self.down = nn.Parameter(torch.randn(4, 32, 16) / 4)

    def forward(self, x: Tensor) -> Tensor:
        """Return a scalar of tokens ``[tokens, 16]``."""
        score, expert = self.router(x).softmax(-1).max(-1)
        order = expert.argsort()
        counts = torch.histc(expert.float(), 4, 0, 3)
        ends = counts.cumsum(0).to(torch.int32)
        hidden = nn.functional.grouped_mm(x[order], self.up, offs=ends).relu()
        out = nn.functional.grouped_mm(hidden, self.down, offs=ends)
        return (out * score[order].unsqueeze(1)).square().mean()


def test_experts_compiled_as_a_whole_train_as_they_do_op_by_op() -> None:
    torch.manual_seed(0)
    model, x = Experts(), torch.randn(24, 16)
    plan = pt.plan(model, x, mesh=pt.Mesh(dp=1))
    found: list[list[Tensor | None]] = []
    for compilation in ("eager", "whole"):
        program = pt.compile(copy.deepcopy(model), plan, compilation=compilation)
        loss = program.step(x)
        found.append([loss, *(p.grad for p in program.parameters())])

    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)
