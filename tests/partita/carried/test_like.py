"""A plan's decisions carried to the same model edited, and to meshes of other sizes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models.pipelines import BATCH, WIDTH, Chain
from tests.partita.conftest import MODEL
from torch import nn

import partita as pt
from partita.carried.like import KEPT, plan_like
from partita.cli.main import main

PINS = {"up.weight": "(B, S(0))", "down.weight": "(B, S(1))", "x": "(S(0), B)"}
ZERO = "storage=(B, B); gradient=(S(0), B); optimizer=(S(0), B)"


class Mlp(nn.Module):
    def __init__(self, width: int = 32, between: nn.Module | None = None) -> None:
        super().__init__()
        self.up = nn.Linear(16, width)
        self.between = between or nn.ReLU()
        self.down = nn.Linear(width, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.between(self.up(x))).square().mean()


X = torch.randn(8, 16)


@cache
def old_plan(**pins: str) -> pt.Plan:
    options = pt.Options(pins={**PINS, **pins}, microbatches=1)
    return pt.plan(Mlp(), X, mesh="dp=2,tp=2", options=options)


def test_the_same_model_is_planned_alike() -> None:
    old = old_plan(**{"up.bias": ZERO})
    new, kept = plan_like(Mlp(), X, like=old)
    assert str(kept) == f"{len(kept.matched)} matched, 0 moved, 0 new"
    assert old.diff(new).is_empty
    assert new.options.pins == old.options.pins
    assert new.predicted.seconds == pytest.approx(old.predicted.seconds, rel=1e-9)
    assert pt.verify(Mlp(), X, plan=new).ok


def test_without_the_old_plan_it_would_be_planned_otherwise() -> None:
    free = pt.plan(Mlp(), X, mesh="dp=2,tp=2", options=pt.Options(microbatches=1))
    assert not old_plan().diff(free).is_empty


def test_what_an_edit_adds_is_searched_and_the_rest_is_kept() -> None:
    edited = Mlp(between=nn.Sequential(nn.Linear(32, 32), nn.ReLU()))
    new, kept = plan_like(edited, X, like=old_plan())
    assert {"between.0.weight", "between.0.bias"} <= set(kept.new)
    assert {"up.weight", "down.weight"} <= set(kept.matched)
    assert kept.renamed["between/relu/0"] == "between.1/relu/0"
    assert kept.gone == ()
    assert str(kept).endswith(": searched again; 2 have other names")
    assert pt.verify(edited, X, plan=new).ok


def test_what_an_edit_adds_is_pinned_as_the_old_patterns_say() -> None:
    pins = {"*.weight": "on tp", "x": "(S(0), B)"}
    old = pt.plan(Mlp(), X, mesh="dp=2,tp=2", options=pt.Options(pins=pins))
    edited = Mlp(between=nn.Sequential(nn.Linear(32, 32), nn.ReLU()))
    new, kept = plan_like(edited, X, like=old)
    assert "between.0.weight" in kept.new
    assert isinstance(
        new.parameters["between.0.weight"].placements.storage.shardings[1], pt.Split
    )
    assert new.options.pins == pins
    assert "pinned to on tp by '*.weight'" in new.explain("between.0.weight")
    again, _ = plan_like(Mlp(between=nn.Linear(32, 32)), X, like=new)
    assert isinstance(
        again.parameters["between.weight"].placements.storage.shardings[1], pt.Split
    )
    other, kept = plan_like(edited, X, like=old, mesh="tp=4")
    assert other.options.pins == {}
    assert kept.unpinned == ("*.weight", "x")
    assert kept.axes == ("dp",)
    assert str(kept).endswith(
        "; this mesh has no axis 'dp'; its pin '*.weight' means nothing here; its pin "
        "'x' means nothing here"
    )
    assert KEPT in other.search.status


def test_what_an_edit_drops_is_gone() -> None:
    old = pt.plan(Mlp(between=nn.GELU()), X, mesh="dp=2,tp=2")
    new, kept = plan_like(Mlp(between=nn.ReLU()), X, like=old)
    assert kept.gone == ("between/gelu/0", "between/gelu/0~grad/gelu_backward/0")
    assert "between/relu/0" in kept.new
    assert str(kept).endswith(" 2 gone: searched again")
    assert kept.renamed == {}
    assert pt.verify(Mlp(between=nn.ReLU()), X, plan=new).ok


def test_a_model_whose_modules_got_other_names_is_planned_alike() -> None:
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.Linear(16, 32), nn.ReLU())
            self.last = nn.Linear(32, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.first(x)).square().mean()

    old = old_plan(**{"up.bias": ZERO})
    new, kept = plan_like(Other(), X, like=old)
    assert kept.moved == kept.new == kept.gone == ()
    assert kept.renamed["parameter:up.bias"] == "parameter:first.0.bias"
    held = new.parameters["first.0.bias"].placements
    assert held == old.parameters["up.bias"].placements
    assert new.predicted.seconds == pytest.approx(old.predicted.seconds, rel=1e-9)
    assert pt.verify(Other(), X, plan=new).ok


@pytest.mark.parametrize(
    ("mesh", "held"),
    [
        ("dp=1,tp=4", "(B, S(0))"),
        ("tp=2,dp=4", "(S(0), B)"),
        ("tp=2", "(S(0),)"),
    ],
)
def test_placements_follow_the_names_of_the_axes(mesh: str, held: str) -> None:
    new, kept = plan_like(Mlp(), X, like=old_plan(), mesh=mesh)
    assert str(new.parameters["up.weight"].placements.storage) == held
    assert {"up.weight", "down.weight", "down/addmm/0"} <= set(kept.matched)
    assert kept.new == kept.gone == ()


def test_a_new_axis_is_searched_beside_what_was_split() -> None:
    new, kept = plan_like(Mlp(), X, like=old_plan(), mesh="dp=2,cp=2,tp=2")
    assert "up.weight" in kept.matched
    placement = new.parameters["up.weight"].placements.storage
    assert str(placement.shardings[2]) == "S(0)"


def test_where_no_axis_has_its_old_name_all_has_moved() -> None:
    _, kept = plan_like(Mlp(), X, like=old_plan(), mesh="data=4")
    assert kept.matched == kept.new == kept.gone == ()
    assert "up.weight" in kept.moved
    _, kept = plan_like(Mlp(), X, like=old_plan(), mesh="dp=1,tp=1")
    assert kept.moved == ()


def test_what_no_longer_fits_moves() -> None:
    segments = {"up.weight": "(B, S(0; 16|16))"}
    new, kept = plan_like(Mlp(width=48), X, like=old_plan(**segments))
    assert "up.weight" in kept.moved
    assert pt.verify(Mlp(width=48), X, plan=new).ok


def test_own_pins_come_first() -> None:
    options = pt.Options(pins={"up.*": "(S(0), B)"}, microbatches=1)
    new, kept = plan_like(Mlp(), X, like=old_plan(), options=options)
    assert str(new.parameters["up.weight"].placements.storage) == "(S(0), B)"
    assert "up.weight" in kept.moved
    left = {name: PINS[name] for name in PINS if name != "up.weight"}
    assert new.options.pins == left | dict(options.pins)


BATCHES: Any = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)


@cache
def old_pipeline() -> pt.Plan:
    options = pt.Options(microbatches=4, schedule="gpipe")
    return pt.plan(Chain(4), *BATCHES, mesh="pp=2,dp=2", options=options)


def test_pipelines_keep_schedule_and_placements() -> None:
    old = old_pipeline()
    new, kept = plan_like(Chain(4), *BATCHES, like=old)
    assert (new.schedule.name, new.microbatches) == ("gpipe", 4)
    assert kept.moved == kept.new == ()
    whole, kept = plan_like(Chain(4), *BATCHES, like=old, mesh="dp=2")
    assert len(whole.stages) == 1
    assert "layers.0.weight" in kept.matched


def test_stages_of_a_model_with_other_names_are_found_again() -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Chain(4)

        def forward(self, *batch: torch.Tensor) -> torch.Tensor:
            return self.inner(*batch)

    old = old_pipeline()
    for mesh in ("pp=2,dp=2", "dp=2"):
        _, kept = plan_like(Wrapped(), *BATCHES, like=old, mesh=mesh)
        assert kept.moved == kept.new == kept.gone == ()
        assert kept.renamed["tanh/3"] == "inner/tanh/3"


def test_a_parameter_may_have_the_name_of_an_input() -> None:
    class Product(nn.Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.register_parameter(name, nn.Parameter(torch.ones(16, 8)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            (weight,) = self.parameters()
            return (x @ weight).square().mean()

    old = pt.plan(Product("x"), X, mesh="tp=2")
    _, kept = plan_like(Product("y"), X, like=old)
    assert kept.renamed == {"parameter:x": "parameter:y"}
    assert kept.moved == kept.new == kept.gone == ()


def test_the_command_says_what_it_kept(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target, edited = tmp_path / "mlp.py", tmp_path / "edited_mlp.py"
    target.write_text(MODEL)
    edited.write_text(MODEL.replace("torch.relu(self.up(x))", "torch.tanh(self.up(x))"))
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    pins = ["--pin", "up.weight=(S(0),)"]
    assert (
        main(["plan", f"{target}:build", "--mesh", "tp=2", *pins, "-o", str(old)]) == 0
    )
    capsys.readouterr()
    argv = ["plan", f"{edited}:build", "--like", str(old), "-o", str(new)]
    assert main(argv) == 0
    err = capsys.readouterr().err
    assert f"like {old}: " in err
    assert " new, " in err
    found = pt.Plan.load(new)
    assert str(found.parameters["up.weight"].placements.storage) == "(S(0),)"
    assert found.mesh == pt.Mesh(tp=2)
    assert main([*argv, "--devices", "2"]) == 2
    assert capsys.readouterr().err == (
        "partita: --devices: a plan like another has its mesh, or --mesh; want no "
        "devices\n"
    )


def test_plans_made_of_nothing_else_compare_by_shared_axes() -> None:
    from partita.compiler.plan.reapplied import compare_reapplied

    old = old_plan()
    own = old.parameters["up.weight"]
    placements = replace(own.placements, storage=pt.Placement.parse("(B, B)"))
    parameters = {**old.parameters, "up.weight": replace(own, placements=placements)}
    kept = compare_reapplied(old, replace(old, parameters=parameters))
    assert kept.moved == ("up.weight",)
    assert len(kept.matched) > 5
