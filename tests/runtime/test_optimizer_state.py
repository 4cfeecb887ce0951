"""An optimizer's state by names of the model: what is refused, what is written."""

from __future__ import annotations

import copy
from typing import Any, cast

import pytest
import torch
from torch import nn

from partita.compiler.errors import BadOptions
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.runtime.first_state import first_state
from partita.runtime.groups import bind
from partita.runtime.launch import launch
from partita.runtime.optimizer_state import (
    load_optimizer_state_dict,
    optimizer_state_dict,
)
from partita.runtime.state import Held


def made(*names: str, steps: int = 1) -> tuple[torch.optim.Optimizer, list[Held]]:
    """Return an optimizer of some parameters after steps of a gradient of ones."""
    groups = bind(Mesh(tp=1), "cpu")
    rows = Placement.parse("S(0)")
    held = [
        Held((n,), (n,), (2, 3), rows, nn.Parameter(torch.ones(2, 3)), groups)
        for n in names
    ]
    parameters = [entry.shard for entry in held]
    optimizer = torch.optim.AdamW(parameters, lr=0.1)
    for _ in range(steps):
        for parameter in parameters:
            parameter.grad = torch.ones(2, 3)
        optimizer.step()
    return optimizer, held


def test_what_was_saved_is_loaded_by_name() -> None:
    saved = optimizer_state_dict(*made("a", "b", steps=3))
    assert saved["state"].keys() == {"a", "b"}
    assert saved["param_groups"][0]["params"] == ["a", "b"]
    optimizer, held = made("a", "b", steps=1)
    saved["param_groups"][0]["lr"] = 0.7
    load_optimizer_state_dict(optimizer, held, saved)
    assert optimizer.param_groups[0]["lr"] == 0.7
    assert optimizer.param_groups[0]["params"] == [entry.shard for entry in held]
    again = optimizer_state_dict(optimizer, held)
    for name in ("a", "b"):
        for key, value in saved["state"][name].items():
            assert torch.equal(again["state"][name][key], value), (name, key)


def test_whole_tensors_are_loaded_into_memory_of_their_own() -> None:
    optimizer, held = made("a")
    saved = optimizer_state_dict(optimizer, held)
    moment, step = torch.full((2, 3), 5.0), torch.tensor(9.0)
    saved["state"]["a"] |= {"exp_avg": moment, "step": step}
    load_optimizer_state_dict(optimizer, held, saved)
    state = optimizer.state[held[0].shard]
    moment += 1
    step += 1
    assert state["exp_avg"].tolist() == [[5.0] * 3] * 2
    assert state["step"].item() == 9.0


@pytest.mark.parametrize("steps", [0, 2], ids=["fresh", "stepped"])
def test_that_of_no_step_leaves_the_first_step_to_begin(steps: int) -> None:
    _, held = made("a", steps=0)
    parameter = held[0].shard
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9, dampening=0.5)
    with first_state(optimizer, [parameter]):
        saved = copy.deepcopy(optimizer_state_dict(optimizer, held))
    parameter.grad = torch.ones(2, 3)
    for _ in range(steps):
        optimizer.step()
    saved["param_groups"][0]["lr"] = 0.7
    load_optimizer_state_dict(optimizer, held, saved)
    assert optimizer.param_groups[0]["lr"] == 0.7
    optimizer.step()
    assert optimizer.state[parameter]["momentum_buffer"].tolist() == [[1.0] * 3] * 2


def test_zeros_beside_what_was_stepped_are_loaded() -> None:
    _, held = made("a", "b", steps=0)
    _, others = made("a", "b", steps=0)
    others[0].shard.grad, others[1].shard.grad = torch.ones(2, 3), torch.zeros(2, 3)
    other = torch.optim.SGD([h.shard for h in others], momentum=0.9, dampening=0.5)
    other.step()
    optimizer = torch.optim.SGD([h.shard for h in held], momentum=0.9, dampening=0.5)
    load_optimizer_state_dict(optimizer, held, optimizer_state_dict(other, others))
    assert optimizer.state[held[1].shard]["momentum_buffer"].tolist() == [[0.0] * 3] * 2


def load_zeros_beside_others() -> bool:
    """Load a state that is zero on the first rank; return whether it is there."""
    groups = bind(Mesh(tp=2), "cpu")
    shard = nn.Parameter(torch.ones(2, 3))
    held = [Held(("a",), ("a",), (4, 3), Placement.parse("S(0)"), shard, groups)]
    optimizer = torch.optim.SGD([shard], momentum=0.9, dampening=0.5)
    shard.grad = torch.full((2, 3), float(groups.rank))
    optimizer.step()
    saved = optimizer_state_dict(optimizer, held)
    optimizer.state.clear()
    load_optimizer_state_dict(optimizer, held, saved)
    return torch.equal(optimizer.state[shard]["momentum_buffer"], shard.grad)


@pytest.mark.dist
def test_zeros_of_one_rank_alone_are_loaded() -> None:
    assert launch(f"{__file__}:load_zeros_beside_others", 2) == [True, True]


def test_settings_are_copied_and_names_are_those_of_the_model() -> None:
    optimizer, held = made("a", "b")
    named = [(f"own.{entry.name}", entry.shard) for entry in held]
    first = torch.optim.AdamW(cast(Any, named), lr=torch.tensor(0.5), foreach=False)
    saved = optimizer_state_dict(optimizer, held)
    group = optimizer_state_dict(first, held)["param_groups"][0]
    assert group["params"] == ["a", "b"]
    assert "param_names" not in group
    saved["param_groups"] = [group]
    load_optimizer_state_dict(optimizer, held, saved)
    first.param_groups[0]["lr"].fill_(9.0)
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_what_stands_for_no_parameters_is_passed_over() -> None:
    bind(Mesh(tp=1), "cpu")
    optimizer = torch.optim.Adagrad([nn.Parameter(torch.empty(0))])
    saved = optimizer_state_dict(optimizer, [])
    assert saved["state"] == {}
    load_optimizer_state_dict(optimizer, [], saved)


def test_state_of_some_parameters_is_refused_and_nothing_is_changed() -> None:
    optimizer, held = made("a", "b", steps=3)
    saved = optimizer_state_dict(optimizer, held)
    del saved["state"]["b"]
    optimizer, held = made("a", "b")
    before = str(optimizer.state_dict())
    wanted = [entry.shard for entry in held]
    with pytest.raises(BadOptions) as caught:
        load_optimizer_state_dict(optimizer, held, saved, (), wanted)
    assert str(caught.value) == (
        "optimizer state: that of 'b' is missing; want that of all parameters, as "
        "torch.distributed.checkpoint saves it: a rank of a pipeline has that of its "
        "own stages"
    )
    assert str(optimizer.state_dict()) == before
    load_optimizer_state_dict(optimizer, held, saved, (), wanted[:1])
    saved["state"] = {}
    load_optimizer_state_dict(optimizer, held, saved, (), wanted)


def without_a_group(saved: dict[str, Any]) -> None:
    saved["param_groups"][0]["params"] = ["b"]


def of_another(saved: dict[str, Any]) -> None:
    saved["state"]["c"] = saved["state"]["a"]


def of_another_shape(saved: dict[str, Any]) -> None:
    saved["state"]["a"]["exp_avg"] = torch.ones(3, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_a_group, "optimizer state: its groups hold other parameters"),
        (of_another, "optimizer state: no parameter 'c' is optimized"),
        (
            of_another_shape,
            "optimizer state 'exp_avg' of 'a' has shape [3, 3]; want [2, 3]",
        ),
    ],
)
def test_state_of_something_else_is_refused(change: Any, message: str) -> None:
    optimizer, held = made("a")
    saved = optimizer_state_dict(optimizer, held)
    change(saved)
    with pytest.raises(BadOptions) as caught:
        load_optimizer_state_dict(optimizer, held, saved)
    assert str(caught.value) == message


def test_an_optimizer_that_is_not_elementwise_is_refused() -> None:
    optimizer, held = made("a")
    optimizer.state[held[0].shard]["row"] = torch.ones(2)
    with pytest.raises(BadOptions) as caught:
        optimizer_state_dict(optimizer, held)
    assert str(caught.value) == (
        "optimizer state 'row' of 'a' has shape [2], the rank's shard [2, 3]: only "
        "elementwise optimizers work on shards"
    )


@pytest.mark.parametrize("key", ["state", "param_groups"])
def test_a_state_that_lacks_a_part_is_refused(key: str) -> None:
    optimizer, held = made("a")
    saved = optimizer_state_dict(optimizer, held)
    del saved[key]
    with pytest.raises(BadOptions) as caught:
        load_optimizer_state_dict(optimizer, held, saved)
    assert str(caught.value) == (
        f"optimizer state: {key!r} is missing; want what optimizer_state_dict returned"
    )
