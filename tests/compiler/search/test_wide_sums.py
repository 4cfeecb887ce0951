"""Gradients made in 16 bits are added up in 32, unless that is given up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import inf

import numpy as np
import pytest
import torch
from tests.models import zoo
from tests.models.searched import searched
from tests.slow import slow
from torch import nn

import partita as pt
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.uses import type_of
from partita.compiler.search.model import Floats
from partita.compiler.search.wide_sums import Narrow, WidePrices
from partita.one_mesh.planner import Planner

WIDTH, ROWS = 512, 2048
FEW = 64  # rows and columns, where numbers are computed
# What passes beside computing may be of 32 bits and take no time.
HARDWARE = replace(load_hardware("h100-dgx"), name="h100, one by one", overlap=0.0)


class Mlp(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        made = self.down(torch.relu(self.up(x)))
        return nn.functional.mse_loss(made, target)


NUM_WEIGHTS = 8 * WIDTH**2
BATCH = torch.ones(ROWS, WIDTH), torch.ones(ROWS, WIDTH)
SPLIT = {"x": "(S(0))", "target": "(S(0))"}


@cache
def planned(
    pin: str,
    precision: str | None,
    wide_sums: bool = True,
    rows: int = ROWS,
    width: int = WIDTH,
) -> pt.Plan:
    batch = torch.ones(rows, width), torch.ones(rows, width)
    options = pt.Options(
        pins=SPLIT | {"*.weight": pin},
        precision=precision,
        wide_sums=wide_sums,
        hardware=HARDWARE,
        bucket=0,
    )
    return pt.plan(Mlp(width), *batch, mesh="dp=2", options=options)


def payloads(plan: pt.Plan) -> dict[str, int]:
    """Return the bytes that a rank hands to collectives, but for the loss."""
    found: dict[str, int] = {}
    for total in plan.collectives:
        found[total.kind] = found.get(total.kind, 0) + total.bytes
    found["all_reduce"] = found.get("all_reduce", 0) - 4
    return {kind: size for kind, size in found.items() if size}


ZERO3 = "storage=(S(0)); use=(B)"


@pytest.mark.parametrize("pin", ["(S(0))", ZERO3])
def test_parameters_in_pieces_are_gathered_in_16_bits(pin: str) -> None:
    whole, short = planned(pin, None), planned(pin, "bfloat16")
    assert payloads(whole) == {
        "all_gather": 2 * NUM_WEIGHTS,
        "reduce_scatter": 4 * NUM_WEIGHTS,
    }
    assert payloads(short) == {
        "all_gather": NUM_WEIGHTS,
        "reduce_scatter": 4 * NUM_WEIGHTS,
    }
    assert short.predicted.seconds < whole.predicted.seconds
    for parameter in short.parameters.values():
        assert str(parameter.placements.use) == "(B,)"


def test_sums_in_16_bits_move_half_of_the_bytes() -> None:
    narrow = planned(ZERO3, "bfloat16", False)
    assert payloads(narrow) == {
        "all_gather": NUM_WEIGHTS,
        "reduce_scatter": 2 * NUM_WEIGHTS,
    }
    assert narrow.predicted.seconds < planned(ZERO3, "bfloat16").predicted.seconds


@pytest.mark.parametrize(
    "wide_sums", [True, pytest.param(False, marks=pytest.mark.slow)]
)
def test_plans_compute_the_model_either_way(wide_sums: bool) -> None:
    plan = planned(ZERO3, "bfloat16", wide_sums, FEW, FEW)
    sums = {
        type_of(plan, boxing.ref).dtype
        for boxing in plan.boxings
        if boxing.source.has_partial and type_of(plan, boxing.ref).numel > 1
    }
    assert sums == {torch.float32 if wide_sums else torch.bfloat16}
    torch.manual_seed(0)
    batch = torch.randn(FEW, FEW), torch.randn(FEW, FEW)
    report = pt.verify(Mlp(FEW), *batch, plan=plan)
    assert report.ok, report


def test_tensor_parallel_activations_are_added_up_in_16_bits() -> None:
    pins = {"up.weight": "(S(0))", "down.weight": "(S(1))", "x": "(B)", "target": "(B)"}
    for precision, size in (("bfloat16", 2), (None, 4)):
        options = pt.Options(pins=pins, precision=precision, hardware=HARDWARE)
        plan = pt.plan(Mlp(), *BATCH, mesh="tp=2", options=options)
        (total,) = plan.collectives
        assert (total.kind, total.bytes) == ("all_reduce", size * ROWS * WIDTH)


@pytest.mark.parametrize("name", ["gpt2", slow("bert"), "resnet"])
def test_no_gradient_of_a_model_is_added_up_in_16_bits(name: str) -> None:
    model, args, kwargs = zoo.ZOO[name]()
    options = pt.Options(
        precision="bfloat16",
        pins=zoo.data_parallel_pins((model, args, kwargs), 1),
        time_limit=20.0,
    )
    planner = Planner.of(model, args, kwargs, pt.Mesh(dp=2), options)
    posed = planner.posed
    marked = {
        node.key
        for node in posed.problem.nodes
        if any(isinstance(type_, Narrow) for type_ in node.result_types)
    }
    assert marked
    plan = searched(planner)
    for boxing in plan.boxings:
        if boxing.source.has_partial and not boxing.target.has_partial:
            assert boxing.producer not in marked
    narrow = replace(planner, options=replace(options, wide_sums=False))
    assert not any(
        isinstance(type_, Narrow)
        for node in narrow.posed.problem.nodes
        for type_ in node.result_types
    )


class Ones:
    """Boxings of a second each."""

    def __call__(self, type: TensorType, made: Placement, wanted: Placement) -> float:
        return 1.0

    def table(
        self, type: TensorType, made: Sequence[Placement], wanted: Sequence[Placement]
    ) -> Floats:
        return np.ones((len(made), len(wanted)))


def test_only_sums_of_marked_types_have_no_price() -> None:
    prices = WidePrices(Ones())
    narrow = Narrow((8,), torch.bfloat16)
    parts, whole, split = map(Placement.parse, ("(P(sum),)", "(B,)", "(S(0),)"))
    assert prices(narrow, parts, whole) == prices(narrow, parts, split) == inf
    assert prices(narrow, split, whole) == 1.0
    wide = TensorType((8,), torch.bfloat16)
    assert prices(wide, parts, whole) == 1.0
    made, wanted = (parts, split), (whole, split)
    assert prices.table(narrow, made, wanted).tolist() == [[inf, inf], [1.0, 1.0]]
    assert prices.table(wide, made, wanted).tolist() == [[1.0, 1.0], [1.0, 1.0]]
