"""An optimizer whose update of a part is another than that part of the whole's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import nn

from partita.compiler.errors import BadOptions
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.runtime.groups import Groups, bind
from partita.runtime.optimizer_trial import OptimizerTrials, check_optimizer
from partita.runtime.shard_gradient import Part, ShardGradient
from partita.runtime.state import Held

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class Trusted(torch.optim.Optimizer):
    """Scales an update by the norm of the parameter, from the fifth step on."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.count = 0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update."""
        self.count += 1
        for group in self.param_groups:
            for p in group["params"]:
                scale = p.detach().norm() if self.count > 4 else 1.0
                p.data.sub_(group["lr"] * scale * p.grad)


class Together(torch.optim.SGD):
    """Divides by the norm of all gradients."""

    def step(self, closure: Any = None) -> None:
        """Update."""
        parameters = [p for group in self.param_groups for p in group["params"]]
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        super().step(closure)


class Private(torch.optim.SGD):
    """Has its parameters in a list of its own."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, lr=0.1)
        self.mine = list(parameters)

    def step(self, closure: Any = None) -> None:
        """Update."""
        for p in self.mine:
            if p.grad is not None:
                p.data.mul_(0.9)
        super().step(closure)


class Large(torch.optim.SGD):
    """Takes no small parameters."""

    def step(self, closure: Any = None) -> None:
        """Update."""
        (parameter, *_) = self.param_groups[0]["params"]
        if len(parameter) < 6:
            raise ValueError(f"{len(parameter)} rows")
        super().step(closure)


def owners(*placed: str) -> tuple[list[nn.Parameter], dict[int, Held]]:
    """Return a rank's parameters of shape ``[6, 3]`` so placed on two ranks."""
    mesh = Mesh(tp=2)
    nothing: Any = None
    groups = Groups(mesh, (0,), torch.device("cpu"), nothing, {})
    found: list[nn.Parameter] = []
    held: dict[int, Held] = {}
    for name in placed:
        parameter = nn.Parameter(torch.ones(6, 3))
        found.append(parameter)
        placement = Placement.parse(name)
        entry = Held((name,), (name,), (12, 3), placement, parameter, groups)
        held[id(parameter)] = entry
    return found, held


ELEMENTWISE: dict[str, Make] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.0, amsgrad=True),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "foreach": lambda p: torch.optim.Adam(p, lr=0.1, foreach=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "radam": lambda p: torch.optim.RAdam(p),
    "nadam": lambda p: torch.optim.NAdam(p),
    "rprop": lambda p: torch.optim.Rprop(p),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "adagrad": lambda p: torch.optim.Adagrad(p),
    "adamax": lambda p: torch.optim.Adamax(p),
    "asgd": lambda p: torch.optim.ASGD(p),
    "rmsprop": lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.1),
    "private": Private,
}
OTHERS: dict[str, Make] = {
    "adafactor": lambda p: torch.optim.Adafactor(p),
    "muon": lambda p: torch.optim.Muon(p),
    "trusted": Trusted,
    "together": Together,
}


@pytest.mark.parametrize("kind", ELEMENTWISE)
def test_an_elementwise_optimizer_may_update_parts(kind: str) -> None:
    parameters, held = owners("(S(0))", "(S(1))", "(B)")
    optimizer = ELEMENTWISE[kind](parameters)
    state, kept = torch.get_rng_state(), copy.deepcopy(optimizer.state_dict())
    check_optimizer(optimizer, held, is_alone=False)
    assert torch.equal(torch.get_rng_state(), state)
    assert str(optimizer.state_dict()) == str(kept)
    assert all(torch.equal(p, torch.ones(6, 3)) for p in parameters)


@pytest.mark.parametrize("kind", OTHERS)
def test_any_other_may_not(kind: str) -> None:
    parameters, held = owners("(S(1))", "(B)")
    with pytest.raises(BadOptions, match=r"does not update a part of a parameter as"):
        check_optimizer(OTHERS[kind](parameters), held)


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_whole_may_be_updated_in_any_way(kind: str) -> None:
    parameters, held = owners("(B)", "(B)")
    check_optimizer(OTHERS[kind](parameters), held)


def test_in_a_pipeline_each_parameter_is_updated_by_itself() -> None:
    parameters, held = owners("(B)", "(B)")
    second = [{"params": [p]} for p in parameters]
    check_optimizer(torch.optim.Muon(cast(Any, second)), held, is_alone=False)
    with pytest.raises(BadOptions) as refused:
        check_optimizer(Together(cast(Any, second), lr=0.1), held, is_alone=False)
    assert str(refused.value) == (
        "Together updates a parameter by others too, of which this rank does not have "
        "all; want an elementwise optimizer, such as AdamW"
    )


def test_one_that_cannot_be_tried_is_refused() -> None:
    parameters, held = owners("(S(0))")
    with pytest.raises(BadOptions) as refused:
        check_optimizer(Large(parameters, lr=0.1), held)
    assert str(refused.value) == (
        "Large cannot be tried on small tensors, so that it may update parts of "
        "parameters (ValueError: 4 rows); want an elementwise optimizer, such as AdamW"
    )


def test_one_that_evaluates_the_loss_is_refused_on_parts_alone() -> None:
    parameters, held = owners("(S(0))")
    with pytest.raises(BadOptions, match=r"^LBFGS.step wants a closure that evaluates"):
        check_optimizer(torch.optim.LBFGS(parameters), held)
    parameters, held = owners("(B)")
    check_optimizer(torch.optim.LBFGS(parameters), held)


def test_a_frozen_parameter_of_integers_is_passed_over() -> None:
    parameters, held = owners("(S(0))")
    table = nn.Parameter(torch.ones(5, dtype=torch.int64), requires_grad=False)
    check_optimizer(torch.optim.AdamW([*parameters, table]), held)


def test_a_copy_that_is_tried_is_nobodys() -> None:
    bind(Mesh(tp=1), "cpu")
    parameters, held = owners("(S(0))", "(B)")
    trials = OptimizerTrials(list(held.values()), is_alone=False)
    for parameter in parameters:
        parameter.grad = torch.ones(6, 3)
    optimizer = torch.optim.AdamW(parameters)
    optimizer.step()
    del trials
    assert [group["partita_rank"] for group in optimizer.param_groups] == [0]


def test_it_is_tried_before_the_first_step_and_when_groups_are_added() -> None:
    parameters, held = owners("(S(0))", "(B)")
    trials = OptimizerTrials(list(held.values()), is_alone=True)
    for parameter in parameters:
        parameter.grad = torch.ones(6, 3)
    optimizer = torch.optim.Adafactor(parameters[1:])
    optimizer.step()
    optimizer.add_param_group({"params": parameters[:1]})
    with pytest.raises(BadOptions, match=r"Adafactor .* of shape \[6, 3\]; want"):
        optimizer.step()
    del trials
    optimizer.step()


def test_the_first_step_may_be_compiled() -> None:
    bind(Mesh(tp=1), "cpu")
    parameters, held = owners("(S(0))", "(B)")
    trials = OptimizerTrials(list(held.values()), is_alone=True)
    for parameter in parameters:
        parameter.grad = torch.ones(6, 3)
    optimizer = torch.optim.SGD(parameters, lr=0.1)

    def step() -> None:
        optimizer.step()

    want = [parameter.detach() - 0.1 for parameter in parameters]
    torch.compile(step, backend="eager")()
    del trials
    assert [group["partita_rank"] for group in optimizer.param_groups] == [0]
    torch.testing.assert_close([p.detach() for p in parameters], want)


def test_state_of_another_rank_is_refused_whenever_it_is_loaded() -> None:
    bind(Mesh(tp=1), "cpu")
    parameters, held = owners("(S(0))")
    trials = OptimizerTrials(list(held.values()), is_alone=True)
    optimizer = torch.optim.AdamW(parameters)
    parameters[0].grad = torch.ones(6, 3)
    optimizer.step()
    state = optimizer.state_dict()
    state["param_groups"][0]["partita_rank"] = 1
    optimizer.load_state_dict(state)
    for _ in range(2):
        with pytest.raises(BadOptions, match=r"was saved by rank 1, .* this is rank 0"):
            optimizer.step()
    del state["param_groups"][0]["partita_rank"]
    optimizer.load_state_dict(state)
    optimizer.step()
    assert optimizer.param_groups[0]["partita_rank"] == 0
    del trials


def test_hooks_of_an_optimizer_see_of_what_a_gradient_is_a_part() -> None:
    bind(Mesh(tp=1), "cpu")
    parameters, held = owners("(S(0))")
    trials = OptimizerTrials(list(held.values()), is_alone=True)
    optimizer = torch.optim.AdamW(parameters)
    part = Part(is_counted=True, is_first=True, is_of_stage=False)
    seen: list[type] = []

    def see(*_: Any) -> None:
        seen.append(type(parameters[0].grad))

    for is_hooked in (False, True):
        if is_hooked:
            optimizer.register_step_pre_hook(see)
        parameters[0].grad = ShardGradient.of(torch.ones(6, 3), part)
        optimizer.step()
        see()
    assert seen == [torch.Tensor, ShardGradient, ShardGradient]
    del trials
