"""What a plan makes again and fuses is carried to a model edited, a mesh resized."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from tests.models import projected
from tests.models.pipelines import PIPELINES
from torch import nn

import partita as pt
from partita.carried.like import plan_like
from partita.compiler.ir.again import again_key


class Block(nn.Module):
    """A layer of two products, with two small ops in between that can be one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(16, width)
        self.down = nn.Linear(width, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(x)) * 0.5)


class Deep(nn.Module):
    """Blocks one behind another."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*map(Block, widths))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(x).square().mean()


X = torch.randn(8, 16)


def slow_memory() -> pt.Hardware:
    """Return a machine on which groups pay, small as the models are."""
    known = pt.load_hardware("cpu-gloo")
    return replace(known, device=replace(known.device, memory_bytes_per_s=1e7))


@cache
def old_plan() -> pt.Plan:
    options = pt.Options(
        hardware=slow_memory(), fuse=True, recompute=("blocks.1",), microbatches=1
    )
    return pt.plan(Deep(32, 32), X, mesh="dp=2", options=options)


def test_the_same_model_fuses_and_makes_again_the_same() -> None:
    old = old_plan()
    assert len(old.fusion) > 2
    assert "blocks.1/tanh/0" in old.recompute
    new, kept = plan_like(Deep(32, 32), X, like=old)
    assert (new.fusion, new.recompute) == (old.fusion, old.recompute)
    assert old.diff(new).is_empty
    assert str(kept) == f"{len(kept.matched)} matched, 0 moved, 0 new"
    calls = sum(node.role is None for node in old.nodes.values())
    assert len(kept.matched) == len(old.parameters) + calls + len(old.fusion)
    assert new.predicted == old.predicted


def test_an_edit_is_searched_and_the_rest_kept_and_counted() -> None:
    old = old_plan()
    edited = Deep(32, 48, 32)  # one width is changed, one layer is added
    new, kept = plan_like(edited, X, like=old)

    def now(*keys: str) -> tuple[str, ...]:
        return tuple(key.replace("blocks.1", "blocks.2") for key in keys)

    assert set(now(*old.recompute)) <= set(new.recompute)
    assert {now(*group) for group in old.fusion} <= set(new.fusion)
    assert kept.gone == ()
    assert kept.new
    assert all(name.startswith("blocks.1") for name in kept.new)
    assert again_key("blocks.2/tanh/0") in kept.matched
    assert kept.renamed["blocks.1/tanh/0"] == "blocks.2/tanh/0"
    things = len(new.parameters) + len(new.fusion)
    things += sum(node.role is None for node in new.nodes.values())
    assert len(kept.matched) + len(kept.moved) + len(kept.new) == things
    assert (
        str(kept) == "64 matched, 0 moved, 26 new: searched again; 24 have other names"
    )
    assert pt.verify(edited, X, plan=new).ok


@pytest.mark.parametrize("mesh", ["dp=4", "dp=2,tp=2"])
def test_a_resized_mesh_fuses_and_makes_again_the_same(mesh: str) -> None:
    old = old_plan()
    new, kept = plan_like(Deep(32, 32), X, like=old, mesh=mesh)
    assert set(old.recompute) <= set(new.recompute)
    assert set(old.fusion) <= set(new.fusion)
    assert not kept.new
    assert pt.verify(Deep(32, 32), X, plan=new).ok


def test_groups_by_hand_are_kept_where_they_can_be() -> None:
    own = ("blocks.0/tanh/0", "blocks.0/mul.Tensor/0")
    around = (
        "blocks.0/tanh/0",
        "blocks.0/add.Tensor/0",
    )  # a product stands between them
    new, kept = plan_like(
        Deep(32, 32),
        X,
        like=replace(old_plan(), fusion=(own,)),
        options=pt.Options(hardware=slow_memory(), microbatches=1),
    )
    assert new.fusion == (own,)
    assert "blocks.0/tanh/0 fused" in kept.matched
    new, kept = plan_like(
        Deep(32, 32),
        X,
        like=replace(old_plan(), fusion=(around,)),
        options=pt.Options(hardware=slow_memory(), microbatches=1),
    )
    assert new.fusion == ()
    assert kept.gone == ("blocks.0/tanh/0 fused",)


def test_a_boxing_within_a_group_takes_it_apart() -> None:
    own = ("blocks.0/tanh/0", "blocks.0/mul.Tensor/0")
    pins = {own[0]: "(S(0),)", own[1]: "(S(1),)"}
    options = pt.Options(hardware=slow_memory(), microbatches=1, pins=pins)
    old = replace(old_plan(), fusion=(own,))
    new, kept = plan_like(Deep(32, 32), X, like=old, options=options)
    assert new.fusion == ()
    assert set(own) & set(kept.moved)
    assert f"{own[0]} fused" in kept.gone
    assert pt.verify(Deep(32, 32), X, plan=new).ok


@pytest.mark.slow
def test_pipelines_make_again_and_fuse_the_same() -> None:
    model, args, kwargs = PIPELINES["tied"]()
    options = pt.Options(
        hardware=slow_memory(), fuse=True, recompute=("layers.*",), microbatches=2,
        schedule="1f1b",
    )  # fmt: skip
    old = pt.plan(model, *args, mesh="pp=2", options=options, **kwargs)
    assert old.recompute
    assert old.fusion
    new, kept = plan_like(model, *args, like=old, **kwargs)
    assert (new.fusion, new.recompute) == (old.fusion, old.recompute)
    assert kept.moved == kept.new == kept.gone == ()


def test_products_stay_one_as_they_were_and_others_that_pay_become_one() -> None:
    model, x = projected.built()
    searched = projected.planned()
    old = replace(searched, joined=searched.joined[:1])
    plain = pt.Options(hardware="h100-dgx")
    kept, compared = plan_like(model, x, like=old, options=plain)
    assert kept.joined == old.joined
    assert f"{old.joined[0][0]} joined" in compared.matched
    assert plan_like(model, x, like=old)[0].joined == searched.joined
    apart = replace(old, joined=(), fusion=())
    assert plan_like(model, x, like=apart)[0].joined == ()
