"""Scaling curves against plans that are really made for the other sizes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from tests.compiler.search.hand_made import machine
from tests.models import zoo
from torch import nn

import partita as pt
from partita.carried.like import plan_like
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.plan.document import Ref
from partita.compiler.plan.plan import Plan
from partita.plots.batch_dims import Run, find_batch
from partita.plots.scaling import REST, scale

LENGTH, WIDTH = 32, 256
PINS = {
    "x": "(S(0), B)",
    "0.weight": "(B, S(0)) use=(B, S(0))",
    "2.weight": "(B, S(1)) use=(B, S(1))",
    "*.bias": "(B, B)",
}


class Mean(nn.Module):
    """The loss of what a chain of modules makes of a batch of sequences."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        for number, layer in enumerate(layers):
            self.add_module(str(number), layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.children():
            x = layer(x)
        return x.square().mean()


def model_and_batch(batch: int) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model = Mean(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))
    return model, torch.randn(batch, LENGTH, WIDTH)


def made(microbatches: int = 1) -> Plan:
    """Return a plan of a batch of eight."""
    # What passes beside computing stays as it is where ranks are counted.
    hardware = replace(load_hardware("h100-dgx"), overlap=0.0)
    options = pt.Options(pins=PINS, hardware=hardware, microbatches=microbatches)
    model, x = model_and_batch(8)
    return pt.plan(model, x, mesh=pt.Mesh(dp=2, tp=2), options=options)


def made_like(plan: Plan, batch: int, mesh: pt.Mesh) -> Plan:
    """Return the plan of another size that decides as ``plan`` does."""
    model, x = model_and_batch(batch)
    found, _ = plan_like(model, x, like=plan, mesh=mesh)
    assert placements(found) == placements(plan)
    return found


@pytest.fixture(scope="module")
def plan() -> Plan:
    return made()


@pytest.mark.parametrize("batch", [4, 8, 32])
def test_another_batch_takes_what_its_own_plan_predicts(plan: Plan, batch: int) -> None:
    other = made_like(plan, batch, plan.mesh)
    (found,) = scale(plan, sizes=[batch]).seconds
    assert found == pytest.approx(other.predicted.seconds, rel=1e-6)


def test_another_batch_hides_as_much_as_in_its_own_plan() -> None:
    model, x = model_and_batch(8)
    pins = {"x": "S(0)", "*.weight": "B use=B", "*.bias": "B use=B"}
    hardware = machine(
        overlap=0.9, bytes_per_s=5e6
    )  # not all is hidden of a small batch
    options = pt.Options(pins=pins, hardware=hardware, bucket=0)
    plan = pt.plan(model, x, mesh="dp=2", options=options)
    other = made_like(plan, 16, plan.mesh)
    (hidden_s,) = plan.predicted.hidden_by_part.values()
    (more_s,) = other.predicted.hidden_by_part.values()
    assert 0 < hidden_s < more_s
    (found,) = scale(plan, sizes=[16]).seconds
    assert found == pytest.approx(other.predicted.seconds, rel=1e-6)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("axis", ["dp", "tp"])
def test_more_ranks_take_what_their_own_plan_predicts(
    plan: Plan, axis: str, ranks: int
) -> None:
    other = made_like(plan, 8, pt.Mesh(**{"dp": 2, "tp": 2, axis: ranks}))
    (found,) = scale(plan, axis, [ranks]).seconds
    assert found == pytest.approx(other.predicted.seconds, rel=1e-6)


def placements(plan: Plan) -> dict[str, str]:
    return {key: str(node.signature) for key, node in plan.nodes.items()}


def test_at_its_own_size_the_parts_are_the_plan_s(plan: Plan) -> None:
    found = scale(plan)
    at = found.sizes.index(found.own)
    assert (found.own, found.sizes) == (8, (2, 4, 8, 16, 32))
    assert found.seconds[at] == pytest.approx(plan.predicted.seconds, rel=1e-12)
    for part in ("compute", "update"):
        own = plan.predicted.seconds_by_part[part]
        assert found.parts[part][at] == pytest.approx(own)
    assert len({*found.parts[REST]}) == 1


def test_microbatches_are_of_the_whole_batch() -> None:
    plan = made(microbatches=2)
    other = made_like(plan, 16, plan.mesh)
    found = scale(plan, sizes=[8, 16])
    assert found.own == 8
    own, twice = (p.predicted for p in (plan, other))
    # What adds gradients up is not priced, and does not depend on the batch.
    assert found.seconds == pytest.approx((own.seconds, twice.seconds), rel=1e-6)
    with pytest.raises(pt.PartitaError, match="multiple of 2 microbatches"):
        scale(plan, sizes=[9])


def test_the_batch_is_found_where_dims_are_merged(plan: Plan) -> None:
    found = find_batch(plan)
    key = next(key for key, n in plan.nodes.items() if n.op == "aten.addmm.default")
    assert str(plan.nodes[key].types[0]) == f"f32[{8 * LENGTH}, 64]"
    assert found.dims[Ref(key), 0] == Run(LENGTH, 8)
    assert found.factors[key] == {"m": 8 * LENGTH}
    assert not any(ref.key.startswith("parameter:") for ref, _ in found.dims)


def test_sizes_end_where_ranks_are_joined_by_other_links(plan: Plan) -> None:
    nodes = scale(plan, "dp")  # two neighbours beside them, eight in a machine
    assert nodes.sizes == (2, 4)
    with pytest.raises(pt.PartitaError, match=r"size 8 along dp: .* other links"):
        scale(plan, "dp", [8])


def test_what_cannot_be_scaled_is_said(plan: Plan) -> None:
    wrong = partial(pytest.raises, pt.PartitaError)
    with wrong(match="no ranks there to be more or fewer; want one of batch, dp, tp"):
        scale(plan, "pp")
    with wrong(match="want two ranks or more"):
        scale(plan, "tp", [1])
    with wrong(match="there are none"):
        scale(plan, sizes=[])
    with wrong(match="along tp: the plan has 2 stages, each with a mesh of its own"):
        scale(replace(plan, stages=plan.stages * 2), "tp")
    entering = {k: replace(n, types=(None,)) for k, n in plan.nodes.items()}
    with wrong(match="no inputs with a batch"):
        scale(replace(plan, nodes=entering))


QUICK = ("gpt2",)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in zoo.ZOO],
)
def test_models_of_the_zoo_take_twice_the_batch_as_their_own_plans_say(
    name: str,
) -> None:
    model, args, kwargs = zoo.ZOO[name]()
    options = pt.Options(pins=zoo.data_parallel_pins((model, args, kwargs), 1))
    mesh = pt.Mesh(dp=2)
    plan = pt.plan(model, *args, mesh=mesh, options=options, **kwargs)
    more = tuple(twice(one) for one in args)
    named = {key: twice(one) for key, one in kwargs.items()}
    other, _ = plan_like(model, *more, like=plan, mesh=mesh, **named)
    own = find_batch(plan).size
    (found,) = scale(plan, sizes=[2 * own]).seconds
    assert found == pytest.approx(other.predicted.seconds, rel=1e-6)


def twice(value: Any) -> Any:
    """Return a batch beside itself; what is no batch stays."""
    return torch.cat([value, value]) if isinstance(value, torch.Tensor) else value
