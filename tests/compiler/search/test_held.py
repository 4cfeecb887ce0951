"""Where parameters are updated apart from where they are stored: what plans say."""

from __future__ import annotations

import pytest
import torch
from tests.compiler.search.hand_made import machine
from tests.models import zoo
from tests.models.storage_pins import storage_pins
from torch import Tensor, nn

from partita.carried.like import plan_like
from partita.compiler.errors import BadOptions
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.plan.document import Boxing
from partita.compiler.plan.plan import Plan
from partita.options import Options
from partita.planning import plan as make_plan

at = Placement.parse
B, S = at("(B,)"), at("(S(0),)")
NAME = "up.weight"


def planned(kind: str, **pins: str) -> Plan:
    built = zoo.mlp()
    pins = {**storage_pins(built, kind, 1), **pins}
    options = Options(pins=pins, hardware=machine(), bucket=0)
    x = torch.ones(512, 32)  # more than the weights, so that those travel
    return make_plan(built[0], x, x, mesh=Mesh(dp=2), options=options)


def gradient_of(plan: Plan, name: str = NAME) -> Boxing:
    (found,) = [b for b in plan.boxings if f"gradient:{name}" in b.consumers]
    return found


def entering(plan: Plan) -> dict[str, Boxing]:
    return {boxing.producer: boxing for boxing in plan.boxings if boxing.enters}


def test_zero1_reduces_all_and_slices_for_nothing() -> None:
    plan = planned("zero1")
    held = plan.parameters[NAME].placements
    assert (held.use, held.storage, held.gradient, held.optimizer) == (B, B, B, S)
    reduce, step = gradient_of(plan).lowering
    assert (reduce.kind, reduce.after) == ("all_reduce", B)
    assert (step.kind, step.after, step.bytes) == ("slice", S, 0)
    (reduced,) = [t for t in plan.collectives if t.kind == "all_reduce"]
    sizes = [parameter.type.num_bytes for parameter in plan.parameters.values()]
    assert reduced.bytes == sum(sizes) + 4  # and the loss
    (output,) = [o for o in plan.outputs if str(o) == f"gradient:{NAME}"]
    assert output.placement == S


def test_zero2_scatters_what_it_reduces() -> None:
    plan = planned("zero2")
    held = plan.parameters[NAME].placements
    assert (held.storage, held.gradient, held.optimizer) == (B, S, S)
    assert [s.kind for s in gradient_of(plan).lowering] == ["reduce_scatter"]


@pytest.mark.parametrize("kind", ["zero1", "zero2"])
def test_a_parameter_comes_from_its_optimizer_and_is_priced(kind: str) -> None:
    plan = planned(kind)
    assert set(entering(plan)) == {f"parameter:{name}" for name in plan.parameters}
    boxing = entering(plan)[f"parameter:{NAME}"]
    assert boxing.key == f"parameter:{NAME}~optimizer -> (B,)"
    assert (boxing.source, boxing.target, boxing.index) == (S, B, 0)
    assert [step.kind for step in boxing.lowering] == ["all_gather"]
    assert boxing.why == "updated as (S(0),), stored as (B,)"
    (gathers,) = [t for t in plan.collectives if t.kind == "all_gather"]
    assert gathers.count == len(plan.parameters)
    seconds = plan.predicted.seconds_by_part
    boxed = sum(step.seconds for b in plan.boxings for step in b.lowering if step.bytes)
    assert seconds["communication dp"] == pytest.approx(boxed)


def test_the_update_is_that_of_a_piece() -> None:
    whole = planned("zero1", **{NAME: "storage=B; use=B"})
    split = planned("zero1")
    key = f"parameter:{NAME}"
    assert key not in entering(whole)
    assert whole.parameters[NAME].placements.optimizer == B
    assert whole.nodes[key].seconds > 1.5 * split.nodes[key].seconds
    for plan in (whole, split):
        updates = sum(node.seconds for node in plan.nodes.values() if node.role)
        assert plan.predicted.seconds_by_part["update"] == pytest.approx(updates)


def test_what_a_pin_leaves_out_is_as_the_storage() -> None:
    plan = planned("zero1", **{NAME: "storage=S(0); use=B"})
    held = plan.parameters[NAME].placements
    assert (held.storage, held.gradient, held.optimizer) == (S, S, S)
    only = planned("zero1", **{NAME: "optimizer=S(1)"})
    held = only.parameters[NAME].placements
    assert held.optimizer == at("(S(1),)")
    assert held.gradient == held.storage


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.first.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x)).square().sum()


def test_what_is_not_trained_has_no_optimizer() -> None:
    mesh, x = Mesh(dp=2), torch.ones(4, 4)
    pins = {"first.weight": "storage=S(0); use=B"}
    plan = make_plan(Frozen(), x, mesh=mesh, options=Options(pins=pins))
    held = plan.parameters["first.weight"].placements
    assert (held.storage, held.gradient, held.optimizer) == (S, None, None)
    for name in ("first.weight", "x", "first/addmm/0"):
        pins = {name: "optimizer=S(0)"}
        with pytest.raises(BadOptions) as caught:
            make_plan(Frozen(), x, mesh=mesh, options=Options(pins=pins))
        assert str(caught.value) == (
            f"pin {name!r} fixes a gradient or optimizer, but {name} is no parameter "
            "that is trained"
        )


EVERYWHERE = "storage=(S(0)); gradient=(S(0)); optimizer=(S(0)); use=(B)"


@pytest.mark.parametrize(
    "names",
    [
        ["*"],
        ["first", "last", "x"],
        ["first.weight", "first.bias", "last.*"],
    ],
)
def test_what_is_not_trained_is_held_as_pinned_but_for_what_it_has_not(
    names: list[str],
) -> None:
    pins = {name: "S(0)" if name == "x" else EVERYWHERE for name in names}
    mesh, options = Mesh(dp=2), Options(pins=pins)
    plan = make_plan(Frozen(), torch.ones(4, 4), mesh=mesh, options=options)
    for name, parameter in plan.parameters.items():
        held, updated = parameter.placements, S if name.startswith("last") else None
        assert (held.storage, held.use) == (S, B)
        assert (held.gradient, held.optimizer) == (updated, updated)
    assert "pinned to (S(0),); use=(B,) by" in plan.explain("first.weight")
    assert "optimizer=(S(0),)" in plan.explain("last.weight")


def test_pins_of_training_hold_for_inference() -> None:
    options = Options(pins={"*.weight": EVERYWHERE}, train=False)
    plan = make_plan(Frozen(), torch.ones(4, 4), mesh=Mesh(dp=2), options=options)
    held = plan.parameters["last.weight"].placements
    assert (held.storage, held.optimizer) == (S, None)


class Grown(Frozen):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4, bias=False).requires_grad_(False)
        self.last.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.last(self.first(x))).square().sum()


def test_a_plan_is_carried_over_to_a_model_of_which_more_is_frozen() -> None:
    way = "storage=(B); gradient=(B); optimizer=(S(0)); use=(B)"
    mesh, options = Mesh(dp=2), Options(pins={"*": way})
    old = make_plan(Frozen(), torch.ones(4, 4), mesh=mesh, options=options)
    new, kept = plan_like(Grown(), torch.ones(4, 4), like=old)
    assert "head.weight" in kept.new
    for name in ("last.bias", "head.weight"):
        held = new.parameters[name].placements
        assert (held.storage, held.optimizer) == (B, None)
    assert new.options.pins == old.options.pins
