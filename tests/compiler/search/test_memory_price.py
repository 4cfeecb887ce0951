"""Prices of memory: what is held costs, copies for the backward and state among it."""

from __future__ import annotations

import random
from math import inf

import numpy as np
import pytest
import torch
from tests.compiler.search.hand_made import RandomModel, planner
from tests.compiler.search.test_limited import Layers, posed_layers
from torch import Tensor, nn

from partita.compiler.cost.held_bytes import held_bytes
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.search.build import build_model
from partita.compiler.search.call_times import CallTimes
from partita.compiler.search.draw import draw_choices
from partita.compiler.search.fold import Fold
from partita.compiler.search.holdings import find_holdings
from partita.compiler.search.keeping import keep
from partita.compiler.search.makers import Makers
from partita.compiler.search.memory_price import MemoryPrice
from partita.compiler.search.pose import Posed
from partita.compiler.search.problem import HeldCharges, cost_of, made_placement
from partita.compiler.search.solver import solve


def test_no_price_changes_nothing() -> None:
    posed = posed_layers(Mesh(tp=2))
    priced = MemoryPrice(posed, "adamw", [0]).problem(0.0)
    for node, before in zip(priced.nodes, posed.problem.nodes, strict=True):
        assert node.choices is before.choices


def test_a_trained_parameter_is_held_with_its_two_moments() -> None:
    posed = planner(Layers(), torch.randn(64, 32), mesh=Mesh(tp=2)).posed
    rate = 1e-9
    priced = MemoryPrice(posed, "adamw", [5]).problem(rate)
    keys = [node.key for node in posed.problem.nodes]
    at = keys.index("parameter:layers.0.weight")
    node, before = priced.nodes[at], posed.problem.nodes[at]
    (type_,) = node.result_types
    assert type_ is not None
    for choice, free in zip(node.choices, before.choices, strict=True):
        stored = made_placement(choice, 0)
        num_bytes = held_bytes(type_, stored, Mesh(tp=2))
        assert choice.held is not None
        piece = held_bytes(type_, choice.held.optimizer, Mesh(tp=2))
        copies = 2 if choice.held.optimizer == stored else 3
        more = choice.seconds - free.seconds
        assert more == pytest.approx(rate * (num_bytes + copies * piece))


def test_what_is_not_held_at_the_moment_is_free() -> None:
    posed = posed_layers(Mesh(tp=2))
    last = max(call.time for call in CallTimes(posed).calls.values())
    late = MemoryPrice(posed, "adamw", [last]).problem(1e-9)
    calls = [n for n in late.nodes if n.operands and n.result_types]
    before = [n for n in posed.problem.nodes if n.operands and n.result_types]
    same = [a.choices is b.choices for a, b in zip(calls, before, strict=True)]
    assert sum(same) > len(same) // 2, "most of the forward is gone by then"
    assert not all(same)


def test_making_again_limits_what_holding_costs() -> None:
    posed = posed_layers(Mesh(tp=2))
    moment = CallTimes(posed).forward_end
    dear = MemoryPrice(posed, "adamw", [moment]).problem(1e3)
    by_key = {n.key: n for n in posed.problem.nodes}
    forward = [n for n in dear.nodes if n.key.endswith("gelu/0")]
    assert forward
    for node in forward:
        for choice, free in zip(node.choices, by_key[node.key].choices, strict=True):
            assert choice.seconds <= 2 * free.seconds


def _operands(posed: Posed, index: int) -> range:
    return range(len(posed.problem.nodes[index].operands))


def check_prices(posed: Posed, seed: int) -> None:
    """Check that no drawn assignment is priced at more than it holds."""
    rng = random.Random(seed)
    times = CallTimes(posed)
    every = [call.time for call in times.calls.values()]
    every += [times.leaving, times.update]
    completing = map(times.moments.of_place, times.completed.values())
    every += [begin + part for begin in completing for part in (0, 1)]
    uses = [(index, at) for index in times.calls for at in _operands(posed, index)]
    every += [times.boxed_at(use) + rng.randint(0, 1) for use in uses]
    for _ in range(4):
        moments = rng.sample(every, rng.randint(1, 3))
        rate = 10 ** rng.uniform(-11, -5)
        priced = MemoryPrice(posed, "adamw", moments).problem(rate)
        model = build_model(Fold.none(priced))
        for _ in range(6):
            choices = draw_choices(rng, posed)
            seconds = cost_of(posed.problem, choices)
            assert seconds < inf
            held = find_holdings(posed, choices, "adamw")
            part = rng.choice([0.0, 0.3, 1.0])
            keys = (key for one in held.holdings for key in one.keys[:1])
            keeping = keep(held, {key for key in keys if rng.random() < part})
            makers = Makers(held)
            again = {m: o[0].keys[0] in keeping.again for m, o in makers.every.items()}
            live = makers.live(again).at(np.array(moments))
            num_bytes = float(live.sum()) / len(moments)
            most = seconds + keeping.seconds + rate * num_bytes
            count = len(choices)
            cost = model.cost_of({v: choices[v % count] for v in model.costs})
            assert cost <= most * (1 + 1e-9)
            if part == 0.0 and moments == [times.update]:
                least = seconds + rate * held.state_bytes
                assert cost >= least * (1 - 1e-9)


@pytest.mark.parametrize("seed", [0, 1, 3, 4])
def test_when_the_optimizer_steps_sums_cost_what_they_leave_as(seed: int) -> None:
    model, rng, rate = RandomModel(seed, 8), random.Random(seed), 1e-6
    posed = planner(model, model.inputs(), mesh=Mesh(tp=2), microbatches=2).posed
    update = CallTimes(posed).update
    priced = MemoryPrice(posed, "adamw", [update]).problem(rate)
    for _ in range(6):
        choices = draw_choices(rng, posed)
        held = find_holdings(posed, choices, "adamw")
        makers = Makers(held)
        kept = dict.fromkeys(makers.every, False)
        live = makers.live(kept).at(np.array([update]))
        wanted = rate * (float(live[0]) - held.update_bytes)
        more = cost_of(priced, choices) - cost_of(posed.problem, choices)
        assert more == pytest.approx(wanted)


@pytest.mark.parametrize("seed", [0, 1, 3, 4])
def test_sums_are_not_priced_at_more_than_they_hold(seed: int) -> None:
    model = RandomModel(seed, 8)
    asked = planner(model, model.inputs(), mesh=Mesh(tp=2), microbatches=2)
    assert CallTimes(asked.posed).sums
    check_prices(asked.posed, seed)


@pytest.mark.parametrize("mesh", [Mesh(tp=2), Mesh(dp=2, tp=2), Mesh(tp=3)], ids=str)
@pytest.mark.parametrize("seed", range(8))
def test_no_assignment_is_priced_at_more_than_it_holds(seed: int, mesh: Mesh) -> None:
    model = RandomModel(seed, 8)
    check_prices(planner(model, model.inputs(), mesh=mesh).posed, seed)


def test_layers_are_not_priced_at_more_than_they_hold() -> None:
    check_prices(posed_layers(Mesh(tp=2)), 0)


def test_prices_are_of_the_tensor_and_not_of_what_offers_the_same() -> None:
    model = RandomModel(28, 8)
    posed = planner(model, model.inputs(), mesh=Mesh(tp=2)).posed
    priced = MemoryPrice(posed, "adamw", [2]).problem(1e-9)
    for node, before in zip(priced.nodes, posed.problem.nodes, strict=True):
        if node.key == "loss-scale:loss_scale":  # it is offered what the input is
            assert node.choices[0].seconds - before.choices[0].seconds < 5e-9


class Cubed(nn.Module):
    """A wide layer, and what is made of its output, cheaply but large."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(12288, 49152), nn.Linear(49152, 12288)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.first(x)
        return self.last(inner * torch.tanh(inner + inner.pow(3))).square().mean()


def test_what_is_let_go_of_gives_back_no_more_than_it_was_charged() -> None:
    with torch.device("meta"):
        model, x = Cubed(), torch.empty(64, 2048, 12288)
    hardware = load_hardware("a100-80gb-selene")
    posed = planner(model, x, mesh=Mesh(dp=16, tp=8), hardware=hardware).posed
    free = solve(posed.problem, 60, fold=posed.fold)
    most = find_holdings(posed, free.choices, "adamw").most
    moments = CallTimes(posed).moments
    middle = sum(1 for _ in posed.candidates.program.calls()) // 2
    prices = MemoryPrice(posed, "adamw", [moments.of_call(middle)])
    fold = Fold(prices.problem(0.09 * free.seconds / most), posed.fold.class_of)
    found = solve(fold.problem, 60, fold=fold)
    assert found.bound_s > 0.95 * free.seconds, "holding memory earns nothing"


def test_what_is_left_of_a_charge_is_of_what_is_still_held() -> None:
    charged = HeldCharges(np.array([8.0, 1.0, 3.0]), np.array([80.0, 10.0, 10.0]))
    left = charged.most(0.1, np.array([80.0, 40.0, 10.0, 0.0]))
    np.testing.assert_allclose(left, [8.0, 4.0, 3.0, 2.0])
