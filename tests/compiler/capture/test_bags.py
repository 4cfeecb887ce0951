"""Bags of one size are rows, reshaped and summed; others stay one op."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import partita as pt
from partita.compiler.capture.capture import capture
from partita.compiler.ir.program import op_name

IDS = torch.randint(0, 10, (4, 3), generator=torch.Generator().manual_seed(0))


class Bags(nn.Module):
    """A bag of ids per row, weighted or not."""

    def __init__(self, mode: str, padding: int | None = None) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(10, 6, mode=mode, padding_idx=padding)
        self.scales = nn.Parameter(torch.rand(4, 3)) if mode == "sum" else None

    def forward(self, ids: Tensor) -> Tensor:
        """Return the mean square over bags ``[bags, ids]``."""
        return self.bag(ids, per_sample_weights=self.scales).square().mean()


def _assert_bags_are_split(model: nn.Module, ids: Tensor) -> None:
    pins = {"ids": "(S(0),)"}
    options = pt.Options(hardware="cpu-gloo-free", pins=pins)
    plan = pt.plan(model, ids, mesh=pt.Mesh(dp=2), options=options)

    assert not plan.reported
    report = pt.verify(model, ids, plan=plan)
    assert report.ok, str(report)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_of_one_size_are_ordinary_ops_and_split(mode: str) -> None:
    _assert_bags_are_split(Bags(mode), IDS)


def test_bags_of_one_id_each_are_ordinary_ops_and_split() -> None:
    _assert_bags_are_split(Bags("mean"), IDS[:, :1])


@pytest.mark.parametrize("model", [Bags("max"), Bags("mean", padding=2)])
def test_other_bags_stay_one_op(model: nn.Module) -> None:
    program = capture(model, (IDS,), {}).program

    assert "aten._embedding_bag.default" in {op_name(n) for n in program.calls()}


def test_bags_of_stated_offsets_stay_one_op_and_compute_what_the_model_computes() -> (
    None
):
    class Offsets(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(10, 6)

        def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
            return self.bag(ids, offsets).square().mean()

    model, args = Offsets(), (IDS.flatten(), torch.tensor([0, 2, 9]))
    plan = pt.plan(model, *args, mesh=pt.Mesh(dp=2))

    assert "aten._embedding_bag.default" in {node.op for node in plan.nodes.values()}
    report = pt.verify(model, *args, plan=plan)
    assert report.ok, str(report)
