"""Buckets on one rank's graph: one collective for several boxings, values the same."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from tests.models import zoo
from tests.models.storage_pins import storage_pins
from torch import Tensor, fx, nn

from partita.compiler.errors import BadPlan
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.mesh import Mesh
from partita.compiler.local_invariants import local as check_local
from partita.compiler.plan.plan import Plan
from partita.compiler.rules.table import default_rules
from partita.lowering import Lowered, capture_for
from partita.options import Options
from partita.passes.localize import localize
from partita.passes.send_together import send_together
from partita.planning import plan as make_plan
from partita.verifying.verification import verify

MODELS = {"zero1": "gpt2", "zero2": "mlp", "zero3": "mlp"}


@cache
def planned(kind: str, ranks: int = 2) -> tuple[zoo.Built, Plan]:
    built = zoo.ZOO[MODELS[kind]]()
    model, args, kwargs = built
    pins = storage_pins(built, kind, 1)
    options = Options(pins=pins, bucket=0, hardware="cpu-gloo-free")
    return built, make_plan(
        model, *args, mesh=Mesh(dp=ranks), options=options, **kwargs
    )


@cache
def rank(kind: str, ranks: int = 2, at: int = 0) -> LocalProgram:
    """Return what a rank runs, each boxing by itself."""
    built, plan = planned(kind, ranks)
    lowered = Lowered.of(capture_for(built[0], plan), plan, default_rules)
    return localize(lowered.program, (at,), lowered.rules, lowered.steps)


def gradients(plan: Plan, kind: str = "all_reduce") -> tuple[str, ...]:
    """Return the boxings of gradients that begin so."""
    return tuple(
        boxing.key
        for boxing in plan.boxings
        if all(user.startswith("gradient:") for user in boxing.consumers)
        and boxing.lowering[0].kind == kind
    )


def gathers(plan: Plan) -> tuple[str, ...]:
    """Return the boxings of parameters for the forward."""
    return tuple(
        boxing.key
        for boxing in plan.boxings
        if boxing.producer.startswith("parameter:") and not boxing.enters
    )


def collectives(local: LocalProgram) -> list[str]:
    return [call.op.split(".")[1] for call in check_local(local)]


def calls(local: LocalProgram, name: str) -> list[fx.Node]:
    nodes = local.graph_module.graph.nodes
    return [node for node in nodes if str(node.target).endswith(name)]


def test_without_buckets_the_program_is_the_same() -> None:
    assert send_together(rank("zero1"), ()) is rank("zero1")


def test_sums_are_made_in_one_buffer_and_leave_as_views_of_it() -> None:
    _, plan = planned("zero1")
    keys = gradients(plan)
    assert len(keys) > 1
    apart = rank("zero1")
    local = send_together(apart, (keys,))
    before, after = collectives(apart), collectives(local)
    assert before.count("all_reduce") - after.count("all_reduce") == len(keys)
    assert after.count("all_reduce_") == 1
    (started,) = calls(local, "all_reduce_.default")
    (buffer,) = started.all_input_nodes
    assert list(buffer.users) == [started]
    (wait,) = started.users
    assert len(wait.users) == len(keys)


def test_what_is_scattered_is_in_one_buffer_by_rank() -> None:
    _, plan = planned("zero2")
    keys = gradients(plan, "reduce_scatter")
    assert len(keys) > 1
    local = send_together(rank("zero2"), (keys,))
    assert collectives(local).count("reduce_scatter_tensor") == 1


@pytest.mark.parametrize("at", range(3))
def test_uneven_pieces_are_gathered_together(at: int) -> None:
    _, plan = planned("zero3", 3)
    keys = gathers(plan)
    assert len(keys) > 1
    apart = rank("zero3", 3, at)
    local = send_together(apart, (keys,))
    before, after = collectives(apart), collectives(local)
    name = "all_gather_into_tensor"
    assert before.count(name) - after.count(name) == len(keys) - 1


def test_what_was_gathered_holds_no_buffer() -> None:
    """A part of one row a rank would be a view of it, in any shape of its own."""
    _, plan = planned("zero3", 3)
    keys = gathers(plan)
    assert len(keys) > 1
    local = send_together(rank("zero3", 3), (keys,))
    (gather,) = calls(local, "all_gather_into_tensor.default")
    (wait,) = gather.users
    (by_rank,) = wait.users
    users = [user for part in by_rank.users for user in part.users]
    assert [str(user.target) for user in users] == ["aten.clone.default"] * len(keys)


@pytest.mark.parametrize(("kind", "ranks"), [("zero1", 2), ("zero2", 3), ("zero3", 3)])
def test_values_stay(kind: str, ranks: int) -> None:
    built, plan = planned(kind, ranks)
    kinds = "all_reduce", "reduce_scatter"
    found = [gathers(plan), *(gradients(plan, first) for first in kinds)]
    buckets = tuple(keys for keys in found if len(keys) > 1)
    assert buckets
    model, args, kwargs = built
    report = verify(model, *args, plan=replace(plan, buckets=buckets), **kwargs)
    assert report.ok, report


def test_a_bucket_that_would_wait_for_itself_is_refused() -> None:
    _, plan = planned("zero3")
    gradient = gradients(plan, "reduce_scatter")[0]
    with pytest.raises(BadPlan) as caught:
        send_together(rank("zero3"), ((gathers(plan)[0], gradient),))
    assert str(caught.value) == (
        "buckets[0]: one of its boxings needs what another has made"
    )


class ThreeRows(nn.Module):
    """Two layers, one of three rows: of eight ranks some have none of them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return the loss of ``x`` ``[batch, 8]``."""
        return self.down(self.up(x).relu()).square().mean()


def test_what_is_empty_up_to_some_axis_is_sent_with_the_others_from_there_on() -> None:
    torch.manual_seed(0)
    model, x = ThreeRows(), torch.randn(256, 8)
    pins = {name: "(S(0), S(0), S(0))" for name, _ in model.named_parameters()}
    options = Options(pins=pins, bucket=0, hardware="cpu-gloo-free")
    plan = make_plan(model, x, mesh=Mesh(a=2, b=2, c=2), options=options)
    buckets = gathers(plan), gradients(plan, "reduce_scatter")
    assert [len(keys) for keys in buckets] == [4, 4]
    lowered = Lowered.of(capture_for(model, plan), plan, default_rules)
    gathered: dict[int, set[int]] = {}
    for at in plan.mesh.all_coordinates():
        local = localize(lowered.program, at, lowered.rules, lowered.steps)
        together = send_together(local, buckets)
        before, after = (
            len(calls(one, "all_gather_into_tensor.default"))
            for one in (local, together)
        )
        gathered.setdefault(after, set()).add(before)
    assert gathered.keys() == {3}, "one for each axis, whatever is empty"
    assert len(gathered[3]) > 1, "some have fewer, by themselves"
    report = verify(model, x, plan=replace(plan, buckets=buckets))
    assert report.ok, report
