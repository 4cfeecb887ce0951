"""Cuts of whole programs: against every cut, counted by the definition."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from math import prod

import pytest
import torch
from tests.compiler.ir.small_programs import Builder
from tests.models.pipelines import PIPELINES
from torch import fx

from partita.compiler.capture.capture import capture
from partita.compiler.errors import NoSolution
from partita.compiler.ir.program import (
    InputKind,
    OutputKind,
    Phase,
    Program,
    Value,
    info,
    op_name,
    operands,
    type_of,
)
from partita.compiler.search.cut import Cut, Pipeline, find_cut
from partita.compiler.search.cut_line import Line
from partita.compiler.search.cut_memory import CutMemory
from partita.compiler.search.stage_of import gradient_sums, stage_of

aten = torch.ops.aten
BACKWARD = Phase.BACKWARD_INPUT


@dataclass(frozen=True)
class Case:
    """A program, how it is priced, and what it holds."""

    program: Program
    pipeline: Pipeline
    memory: CutMemory

    @property
    def num_stages(self) -> int:
        return len(self.memory.live)


def random_program(rng: random.Random) -> Program:
    """Return calls with skips, some of tied parameters, and the backward of each."""
    made = Builder()
    scale = made.enter("scale", "f32[1]", kind=InputKind.LOSS_SCALE)
    x = made.enter("x", "f32[4]")
    weights = [
        made.enter(f"w{i}", f"f32[{rng.randint(1, 9)}]", kind=InputKind.PARAMETER)
        for i in range(3)
    ]
    values = [x]
    calls: list[tuple[fx.Node, list[fx.Node]]] = []

    def size() -> str:
        return f"f32[{rng.randint(1, 9)}]"

    for i in range(rng.randint(2, 10)):
        used = [values[-1] if rng.random() < 0.7 else rng.choice(values)]
        used += rng.sample(values, 1) if rng.random() < 0.3 else []
        used += rng.sample(weights, 1) if rng.random() < 0.5 else []
        used = [] if rng.random() < 0.1 else used
        node = made.call(f"m{i}/op/0", aten.mul.Tensor, used, size())
        values.append(node)
        calls.append((node, used))
    gradient: dict[fx.Node, list[fx.Node]] = {}
    for i, (node, used) in reversed([*enumerate(calls)]):
        handed = gradient.get(node, [scale])
        for number, value in enumerate(used):
            about = rng.sample(values, rng.randint(0, 2))
            key = f"m{i}/op/0~grad/op/{number}"
            key = key if rng.random() < 0.8 else f"gone{i}{number}~grad"
            back = made.call(
                key, aten.mul.Tensor, [*handed, *about], size(), None, BACKWARD
            )
            gradient.setdefault(value, []).append(back)
    for number, weight in enumerate(weights):
        addends = gradient.get(weight, [])
        whole = addends[0] if addends else weight
        for place, addend in enumerate(addends[1:]):
            key, add = f"~sum{number}~grad/add/{place}", aten.add.Tensor
            whole = made.call(key, add, [whole, addend], "f32[9]", None, BACKWARD)
        made.leave(OutputKind.GRADIENT, f"w{number}", whole)
    return made.program()


def random_case(seed: int) -> Case:
    rng = random.Random(seed)
    program = random_program(rng)
    keys = [info(node).key for node in program.calls()]
    count = sum(info(n).phase is Phase.FORWARD for n in program.calls())
    num_stages = rng.randint(1, min(4, count))
    seconds = {key: float(rng.choice([0, 0, 1, 2, 5, 9])) for key in keys}
    scale = rng.choice([0.01, 0.1, 1.0])
    m = rng.choice([1, 2, 4])
    pipeline = Pipeline(m, seconds, lambda count: scale * count + 0.3 * (count > 0))
    state = {f"w{i}": rng.randint(0, 9) for i in range(3)}
    saved = {key: rng.randint(0, 5) for key in keys}
    live = [min(num_stages - s, m) for s in range(num_stages)]
    live = live if rng.random() < 0.5 else [m] * num_stages
    return Case(program, pipeline, CutMemory(state, saved, tuple(live)))


def counted(case: Case, ends: tuple[int, ...], forward: tuple[str, ...]) -> Cut:
    """Return what a cut takes, by the definition, from the stages of all calls."""
    program, pipeline, memory = case.program, case.pipeline, case.memory
    stage_of_forward = {
        key: stage
        for stage, (a, b) in enumerate(pairwise((0, *ends)))
        for key in forward[a:b]
    }
    stages = stage_of(program, stage_of_forward)
    seconds, held = [0.0] * len(ends), [0] * len(ends)
    crossing = [set[Value]() for _ in ends[1:]]
    parameters = [set[str]() for _ in ends]
    names = {node: role.name for node, role in program.placeholders()}
    sums = gradient_sums(program)
    for node in program.calls():
        here = stages[info(node).key]
        seconds[here] += pipeline.seconds[info(node).key]
        if info(node).phase is Phase.FORWARD:
            held[here] += memory.live[here] * memory.saved_bytes[info(node).key]
        for value in operands(node):
            if op_name(value.node) == "placeholder":
                parameters[here].add(names[value.node])
            elif node not in sums:
                there = stages[info(value.node).key]
                for boundary in range(min(here, there), max(here, there)):
                    crossing[boundary].add(value)
    for stage, used in enumerate(parameters):
        held[stage] += sum(memory.state_bytes.get(name, 0) for name in used)
    hop_bytes = [sum(type_of(v).num_bytes for v in values) for values in crossing]
    took = [
        s + h
        for s, h in zip(
            seconds, [*map(pipeline.hop_seconds, hop_bytes), 0.0], strict=True
        )
    ]
    step = sum(took) + (pipeline.num_microbatches - 1) * max(took)
    return Cut(stage_of_forward, tuple(seconds), tuple(hop_bytes), tuple(held), step)


def all_cuts(case: Case) -> list[Cut]:
    forward = Line.of(case.program).forward
    inside = combinations(range(1, len(forward)), case.num_stages - 1)
    return [counted(case, (*ends, len(forward)), forward) for ends in inside]


def check_is_among(cut: Cut, cuts: list[Cut]) -> None:
    (same,) = (c for c in cuts if c.stage_of_forward == cut.stage_of_forward)
    assert cut.seconds == pytest.approx(same.seconds)
    assert cut.step_seconds == pytest.approx(same.step_seconds)
    assert replace(cut, seconds=(), step_seconds=0) == replace(
        same, seconds=(), step_seconds=0
    )


@pytest.mark.parametrize("seed", range(200))
def test_cut_is_the_best_of_all(seed: int) -> None:
    case = random_case(seed)
    line, cuts = Line.of(case.program), all_cuts(case)
    free = find_cut(line, case.pipeline, case.num_stages, case.memory)
    check_is_among(free, cuts)
    assert free.step_seconds == pytest.approx(min(c.step_seconds for c in cuts))
    limits = sorted({max(c.memory_bytes) for c in cuts})
    for limit in {limits[0], limits[len(limits) // 2]}:
        memory = replace(case.memory, limit_bytes=limit)
        cut = find_cut(line, case.pipeline, case.num_stages, memory)
        check_is_among(cut, cuts)
        fit = (c.step_seconds for c in cuts if max(c.memory_bytes) <= limit)
        assert cut.step_seconds == pytest.approx(min(fit))
    memory = replace(case.memory, limit_bytes=(limits[0] - 1) // 2)
    with pytest.raises(NoSolution) as caught:
        find_cut(line, case.pipeline, case.num_stages, memory)
    assert caught.value.least_bytes == limits[0]


def test_more_stages_than_calls_are_refused() -> None:
    made = Builder()
    made.call("a", aten.relu.default, [made.enter("x", "f32[4]")], "f32[4]")
    line = Line.of(made.program())
    with pytest.raises(NoSolution) as caught:
        find_cut(line, Pipeline(2, {}, float), 2)
    assert str(caught.value) == (
        "2 pipeline stages: the forward has 1 calls, and a stage has at least one"
    )


def test_too_little_memory_says_how_much_is_needed() -> None:
    made = Builder()
    a = made.call("a", aten.relu.default, [made.enter("x", "f32[4]")], "f32[4]")
    made.call("b", aten.relu.default, [a], "f32[4]")
    memory = CutMemory({}, {"a": 1024, "b": 3072}, (2, 1), 2048)
    with pytest.raises(NoSolution) as caught:
        find_cut(Line.of(made.program()), Pipeline(2, {}, float), 2, memory)
    assert str(caught.value) == (
        "memory: the limit is 2 KiB on a rank, and every cut into 2 stages needs "
        "3 KiB on some rank"
    )


def test_uneven_model_gets_uneven_layers() -> None:
    model, args, kwargs = PIPELINES["uneven"]()
    program = capture(model, args, kwargs).program
    line = Line.of(program)
    seconds = {info(node).key: flops(node) for node in program.calls()}
    pipeline = Pipeline(8, seconds, float)
    cut = find_cut(line, pipeline, 4)
    layers = [
        *(f"stem.{i}/convolution/0" for i in range(3)),
        *("widen/addmm/0", *(f"layers.{i}/addmm/0" for i in range(8))),
    ]
    of_stage = [cut.stage_of_forward[layer] for layer in layers]
    assert of_stage == [0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]
    ends = [line.forward.index(layers[i]) - 1 for i in (3, 6, 9)]  # in front of its t
    nothing = CutMemory({}, dict.fromkeys(line.forward, 0), (1,) * 4)
    case = Case(program, pipeline, nothing)
    even = counted(case, (*ends, len(line.forward)), line.forward)
    assert cut.step_seconds < 0.9 * even.step_seconds


def flops(node: fx.Node) -> float:
    """Return what a call computes; one for every element if it is no product."""
    shapes = [type_of(value).shape for value in operands(node)]
    made = sum(t.numel for t in info(node).types if t is not None)
    match op_name(node):
        case "aten.mm.default" | "aten.addmm.default":
            return 2.0 * made * shapes[-1][0]
        case "aten.convolution.default":
            return 2.0 * made * prod(shapes[1][1:])
        case "aten.convolution_backward.default":
            return 4.0 * prod(shapes[0]) * prod(shapes[2][1:])
        case _:
            return float(made)
