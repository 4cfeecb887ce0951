"""What a plan sends together is carried to a model edited, a mesh resized."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch import nn

import partita as pt
from partita.carried.carried_buckets import with_buckets_like
from partita.carried.like import plan_like
from partita.compiler.plan.buckets import collective_totals
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.reapplied import Reapplied
from partita.whole_plans.recount import recount, with_figures

X = torch.randn(64, 16)


class Deep(nn.Module):
    """Layers one behind another, with a name that may be another."""

    def __init__(self, count: int = 3, name: str = "layers") -> None:
        super().__init__()
        layers = nn.Sequential(*(nn.Linear(16, 16) for _ in range(count)))
        self.name = name
        self.add_module(name, layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.get_submodule(self.name)(x).square().mean()


@cache
def old_plan() -> Plan:
    options = pt.Options(pins={"x": "(S(0),)"}, microbatches=1)
    return pt.plan(Deep(), X, mesh="dp=2", options=options)


def by_hand() -> Plan:
    """Return the plan with its one bucket cut into two, and one boxing alone."""
    old = old_plan()
    (keys,) = old.buckets
    assert len(keys) >= 6
    edited = replace(old, buckets=(keys[:2], keys[2:-1]))
    edited.validate()
    return edited


def now(keys: tuple[str, ...], kept: Reapplied) -> tuple[str, ...]:
    """Return what boxings are called after an edit."""
    apart = (key.partition("#") for key in keys)
    return tuple(kept.renamed.get(key, key) + joint + to for key, joint, to in apart)


def test_the_same_model_sends_the_same_together() -> None:
    old = old_plan()
    new, kept = plan_like(Deep(), X, like=old)
    assert new.buckets == old.buckets
    assert new.predicted == old.predicted
    assert new.collectives == old.collectives
    assert f"{old.buckets[0][0]} sent together" in kept.matched
    assert kept.moved == kept.new == kept.gone == ()


def test_buckets_by_hand_are_kept_and_so_is_what_is_sent_alone() -> None:
    old = by_hand()
    new, kept = plan_like(Deep(), X, like=old)
    assert new.buckets == old.buckets
    assert not recount(new).is_edited
    assert recount(old).plan.buckets == old.buckets
    assert recount(old).plan.collectives == new.collectives
    assert kept.moved == kept.new == kept.gone == ()
    assert pt.verify(Deep(), X, plan=new).ok


def test_where_a_module_has_another_name_its_buckets_are_kept() -> None:
    old = by_hand()
    new, kept = plan_like(Deep(name="blocks"), X, like=old)
    renamed = tuple(
        tuple(key.replace("layers", "blocks") for key in keys) for keys in old.buckets
    )
    assert new.buckets == renamed
    assert kept.moved == kept.new == kept.gone == ()


def test_what_is_new_is_sent_together_by_itself() -> None:
    old = by_hand()
    new, kept = plan_like(Deep(4), X, like=old)
    assert new.buckets[:2] == tuple(now(keys, kept) for keys in old.buckets)
    (added,) = new.buckets[2:]
    assert len(added) == 2
    assert f"{added[0]} sent together" in kept.new
    assert pt.verify(Deep(4), X, plan=new).ok


def test_what_is_left_of_a_bucket_that_lost_a_member_is_chosen_anew() -> None:
    whole = old_plan()
    (keys,) = whole.buckets
    apart = replace(whole, buckets=())
    old = replace(whole, buckets=((*keys[:2], "gone/0#0 -> (B,)"), keys[2:-1]))
    new = with_buckets_like(apart, old, 2**20)
    assert new.buckets == (keys[2:-1], keys[:2])
    assert not recount(new).is_edited


def test_within_a_limit_that_has_no_room_none_are_kept() -> None:
    apart = with_figures(replace(old_plan(), buckets=()))
    apart = replace(apart, collectives=collective_totals(apart))
    less = replace(apart.options, memory_bytes=apart.predicted.bytes // 2)
    limited = replace(apart, options=less)
    assert with_buckets_like(limited, by_hand(), 2**20) == limited


def test_on_a_resized_mesh_the_rest_is_chosen_anew() -> None:
    old = by_hand()
    new, _ = plan_like(Deep(), X, like=old, mesh="dp=4")
    assert set(old.buckets) <= set(new.buckets)
    assert not recount(new).is_edited


def test_who_asks_for_none_gets_none() -> None:
    options = pt.Options(microbatches=1, bucket=0)
    new, kept = plan_like(Deep(), X, like=by_hand(), options=options)
    assert new.buckets == ()
    assert len(kept.gone) == 2
