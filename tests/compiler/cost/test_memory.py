"""Timelines of plans: counted by hand, and against the program that a rank runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tests.compiler.cost.live_storages import live_bytes
from tests.compiler.search.hand_made import machine
from tests.models import zoo
from tests.passes.test_exchange_instead import slow_at
from tests.slow import slow
from torch import Tensor, nn

from partita.compiler.cost.collectives import CollectiveKind
from partita.compiler.cost.memory import (
    CLIP_GRADIENTS,
    GIVE_GRADIENTS,
    OPTIMIZER_STEP,
    timeline,
    timeline_at,
)
from partita.compiler.cost.timeline import Category, Held, Timeline
from partita.compiler.ir.layout import shard_shape
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.on_device import on_device
from partita.compiler.ir.program import InputKind
from partita.compiler.ir.sbp import Placement
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.uses import handed_over
from partita.compiler.rules.table import default_rules
from partita.lowering import Lowered, capture_for
from partita.one_mesh.planner import Planner
from partita.options import Options
from partita.planning import plan as make_plan
from partita.runtime.executor import without_outputs

TP = Mesh(tp=2)
KB = 1024


class Chain(nn.Module):
    """``sum(relu(x w)^T)`` on 16 x 16 matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(16, 16))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x @ self.w).t().reshape(-1).square().sum()


def chain(pins: dict[str, str], optimizer: str = "adamw", train: bool = True) -> Plan:
    options = Options(pins=pins, hardware=machine(), optimizer=optimizer, train=train)
    return make_plan(Chain(), torch.ones(16, 16), mesh=TP, options=options)


WHOLE = {"w": "B use=B", "x": "B", "mm/0": "B"}


def of(step: Timeline, category: Category) -> list[Held]:
    return [item for item in step.held if item.category is category]


def test_state_is_held_all_the_time() -> None:
    step = chain(WHOLE).memory()
    last = len(step.moments) - 1
    for category, sizes in (
        (Category.PARAMETERS, [KB]),
        (Category.OPTIMIZER, [KB, KB]),
    ):
        found = of(step, category)
        assert [item.num_bytes for item in found] == sizes
        assert {(item.key, item.first, item.last) for item in found} == {("w", 0, last)}


def test_the_optimizer_decides_what_is_held() -> None:
    step = chain(WHOLE, "sgd").memory()
    assert of(step, Category.OPTIMIZER) == []
    assert step.moments[-3:] == (GIVE_GRADIENTS, CLIP_GRADIENTS, OPTIMIZER_STEP)
    assert step.by_category(len(step.moments) - 1) == {
        Category.PARAMETERS: KB,
        Category.GRADIENTS: KB,
        Category.BUFFERS: 4,  # the loss scale
        Category.TEMPORARIES: 4,  # the loss
    }


def test_a_gradient_is_held_from_when_it_is_made() -> None:
    step = chain(WHOLE).memory()
    (gradient,) = of(step, Category.GRADIENTS)
    assert gradient.num_bytes == KB
    assert gradient.key.startswith("mm/0~grad/")
    assert step.moments[gradient.first] == gradient.key
    assert gradient.last == len(step.moments) - 1


def test_what_the_backward_uses_is_saved() -> None:
    step = chain(WHOLE).memory()
    saved = {item.key for item in of(step, Category.SAVED)}
    # relu's result is needed by its backward, the product's is not; what is transposed
    # has to be copied before it can be flat, and the square's backward needs the copy.
    assert saved == {"relu/0", "clone/0"}
    assert "permute/0" not in {item.key for item in step.held}


def test_each_rank_holds_its_share() -> None:
    plan = chain({"w": "S(1) use=S(1)", "x": "B", "mm/0": "S(1)"})
    step = plan.memory()
    assert [h.num_bytes for h in of(step, Category.PARAMETERS)] == [KB // 2]
    assert [h.num_bytes for h in of(step, Category.OPTIMIZER)] == [KB // 2] * 2


def test_boxed_copies_live_until_their_last_use() -> None:
    plan = chain({"w": "S(0) use=B", "x": "B", "mm/0": "B"})
    step = plan.memory()
    (key,) = (b.key for b in plan.boxings if b.producer == "parameter:w")
    (copy,) = (h for h in of(step, Category.BOXING) if h.key == key)
    assert copy.num_bytes == KB
    assert step.moments[copy.first] == f"{key}: all_gather tp"
    assert step.moments[copy.last] == "mm/0"
    (gloo,) = (h for h in of(step, Category.WORKSPACE) if h.key == key)
    assert (gloo.num_bytes, gloo.first, gloo.last) == (KB, copy.first, copy.first)


def test_stored_otherwise_than_optimized_is_a_second_copy() -> None:
    plan = chain(WHOLE)
    (parameter,) = plan.parameters.values()
    placements = replace(parameter.placements, optimizer=Placement.parse("S(0)"))
    changed = {"w": replace(parameter, placements=placements)}
    step = timeline(replace(plan, parameters=changed))
    assert [h.num_bytes for h in of(step, Category.PARAMETERS)] == [KB, KB // 2]
    assert [h.num_bytes for h in of(step, Category.OPTIMIZER)] == [KB // 2] * 2


class Telling(nn.Module):
    """Hands over a product, beside the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(16, 16))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = x @ self.w
        return {"loss": torch.relu(y).sum(), "y": y}


@pytest.mark.parametrize("train", [True, False])
def test_training_lets_go_of_what_it_hands_to_nobody(train: bool) -> None:
    options = Options(pins=WHOLE, hardware=machine(), train=train)
    x = torch.ones(16, 16)
    step = make_plan(Telling(), x, mesh=TP, options=options).memory()
    (y,) = (held for held in step.held if held.key == "mm/0")
    last = "relu/0" if train else GIVE_GRADIENTS
    assert step.moments[y.last] == last


def test_what_is_boxed_to_leave_is_held_in_training_too() -> None:
    """Drawn plans have outputs leave otherwise than they are made."""
    model, x = Telling(), torch.ones(16, 16)
    planner = Planner.of(model, (x,), {}, TP, Options(hardware=machine()))
    kinds: set[bool] = set()
    for seed in range(60):
        plan = planner.random(seed)
        is_boxed = any("output:y" in boxing.consumers for boxing in plan.boxings)
        held = [str(output) for output in handed_over(plan)]
        assert ("output:y" in held) is is_boxed
        kinds.add(is_boxed)
    assert kinds == {True, False}


def test_inference_keeps_no_gradients() -> None:
    step = chain(WHOLE, train=False).memory()
    assert of(step, Category.GRADIENTS) == of(step, Category.OPTIMIZER) == []
    assert OPTIMIZER_STEP not in step.moments


def test_a_gpu_takes_whole_blocks() -> None:
    hardware = machine().to_dict()
    hardware["device"]["kind"] = "cuda"
    step = timeline(replace(chain(WHOLE), hardware=hardware))
    assert all(item.num_bytes % 512 == 0 for item in step.held)


def test_calls_of_one_kernel_keep_nothing_between_them() -> None:
    plan = chain(WHOLE)
    group = ("mm/0", "relu/0")
    alone, fused = timeline(plan), timeline(replace(plan, fusion=(group,)))
    assert "mm/0" in {item.key for item in alone.held}
    assert "mm/0" not in {item.key for item in fused.held}
    assert "mm/0 and 1 more" in fused.moments


STRATEGIES: dict[str, Callable[[zoo.Built], dict[str, str]]] = {
    "data parallel": lambda built: zoo.data_parallel_pins(built, 1),
    "tensor parallel": lambda built: zoo.tensor_parallel_pins(built[0], 1),
    "in pieces": lambda built: (
        zoo.data_parallel_pins(built, 1)
        | {n: f"{own} use=B" for n, own in zoo.sharded_pins(built[0], 1).items()}
    ),
}


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("mlp", "in pieces"),
        ("gpt2", "tensor parallel, made again"),
        slow("llama", "in pieces"),
        ("resnet", "data parallel"),
        slow("bert", "data parallel"),
    ],
)
def test_a_plan_says_what_its_program_holds(name: str, strategy: str) -> None:
    built = zoo.ZOO[name]()
    model, args, kwargs = built
    strategy, _, again = strategy.partition(", ")
    options = Options(
        pins=STRATEGIES[strategy](built),
        hardware=machine(alpha_s=1e-3),  # so that buckets pay
        recompute=("transformer.h.*",) if again else (),
    )
    plan = make_plan(model, *args, mesh=TP, options=options, **kwargs)
    assert bool(plan.recompute) == bool(again)
    assert plan.buckets or strategy == "tensor parallel"
    lowered = Lowered.of(capture_for(model, plan), plan, default_rules)
    for rank in (0,), (1,):
        step = timeline_at(plan, rank)
        local = without_outputs(lowered.at(rank))
        inputs: list[torch.Tensor | int] = []
        for role, type_, placed in zip(
            local.inputs, local.input_types, local.input_placements, strict=True
        ):
            if role.kind is InputKind.COORDINATE:
                inputs.append(rank[0])
            else:
                assert type_ is not None
                assert placed is not None
                shape = shard_shape(type_.shape, placed, TP, rank)
                made = torch.empty(shape, dtype=type_.dtype, device="meta")
                inputs.append(made)
        module = on_device(local.graph_module, torch.device("meta"))
        held = live_bytes(module, inputs)
        end = step.moments.index(GIVE_GRADIENTS)
        moments = range(1, end)
        # Neither what was there before nor what the graph does not show.
        made = tuple(
            item
            for item in step.held
            if item.first > 0 and item.category is not Category.WORKSPACE
        )
        inside = replace(step, held=made)
        want = max(num_bytes for _, num_bytes in held)
        found = max(inside.bytes_at[moment] for moment in moments)
        assert found == pytest.approx(want, rel=1e-3)
        # Not the peak alone: all that the program holds, moment by moment.
        mean = sum(n for _, n in held) / len(held)
        total = sum(inside.bytes_at[moment] for moment in moments)
        assert total / len(moments) == pytest.approx(mean, rel=0.15)


def test_what_ranks_exchange_for_a_sum_is_held_until_the_sum_is_used() -> None:
    model, args, kwargs = built = zoo.ZOO["mlp"]()
    hardware = slow_at(tuple(set(CollectiveKind) - {CollectiveKind.ALL_TO_ALL}))
    pins = zoo.data_parallel_pins(built, 1)
    options = Options(pins=pins, hardware=hardware, bucket=0)
    plan = make_plan(model, *args, mesh=Mesh(tp=3), options=options, **kwargs)
    (key,) = (b.key for b in plan.boxings if b.producer == "down/addmm/0~grad/mm/1")
    step = plan.memory()
    repeated, summed, others = (item for item in step.held if item.key == key)
    # What is put in for three ranks, the sum, and what came besides of the other two.
    assert [item.num_bytes for item in (repeated, summed, others)] == [
        24 * KB,
        8 * KB,
        16 * KB,
    ]
    behind_all = step.moments.index(GIVE_GRADIENTS)
    assert repeated.last == others.last == behind_all - 1
    meanwhile = step.moments[others.first + 1 : behind_all]
    assert "up/addmm/0~grad/mm/0" in meanwhile
    assert summed.last == len(step.moments) - 1
    assert step.messages[key] == 48 * KB
