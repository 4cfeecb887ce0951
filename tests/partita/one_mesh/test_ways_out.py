"""Who conflicts where nothing fits, and what would help: all of it tried."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from tests.models import zoo

from partita.compiler.capture.capture import Captured, capture
from partita.compiler.capture.inputs import InputSpec
from partita.compiler.errors import BadOptions, NoSolution
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.units import parse_bytes
from partita.compiler.search.parts import Clock
from partita.one_mesh.ways_out import Refused
from partita.options import Options
from partita.planning import plan

TP2 = Mesh(tp=2)
WHOLE = {name: "(B,)" for name in ("up.weight", "up.bias", "down.weight", "down.bias")}


def refusal(**options: Any) -> str:
    model, args, _ = zoo.mlp()
    with pytest.raises(NoSolution) as caught:
        plan(model, *args, mesh=TP2, options=Options(time_limit=60, **options))
    return str(caught.value)


@pytest.mark.slow
def test_a_limit_that_two_pins_break_is_told_with_both() -> None:
    model, args, _ = zoo.mlp()
    text = refusal(memory="60KiB", pins=WHOLE)
    assert "; what conflicts: memory and pin 'up.weight'; a plan was found " in text
    freed = re.search(r"without (pin 'up.weight' and pin 'down.weight'|[^;,]*),", text)
    assert freed is not None
    names = re.findall(r"pin '([^']*)'", freed[1])
    pins = {name: pin for name, pin in WHOLE.items() if name not in names}
    found = plan(model, *args, mesh=TP2, options=Options(memory="60KiB", pins=pins))
    assert found.predicted.bytes <= parse_bytes("60KiB")
    assert len(pins) >= 2, "small pins stay"


def test_one_pin_to_blame_is_left_out() -> None:
    text = refusal(pins={**WHOLE, "gelu/0": "(P(sum),)"})
    assert "has no signature with that placement" in text
    assert re.search(
        r"; a plan was found without pin 'gelu/0', [\d.]+ \w+ a step$", text
    )
    assert "what conflicts" not in text


@pytest.mark.slow
def test_a_limit_that_no_plan_keeps_to_is_told_with_what_would_do() -> None:
    model, args, _ = zoo.mlp()
    text = refusal(memory="40KiB", pins={"up.bias": "(B,)"})
    assert "no pin is to blame" in text
    (within,) = re.findall(r"a plan was found within ([\d.]+ \w+),", text)
    found = plan(model, *args, mesh=TP2, options=Options(memory=within))
    assert found.predicted.bytes <= parse_bytes(within)
    assert "or on 4 ranks (tp=4), " in text


@pytest.mark.slow
def test_a_batch_too_large_is_told_with_one_that_fits_and_in_parts() -> None:
    model, _, _ = zoo.mlp()

    def example(batch: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(batch, 32), torch.randn(batch, 32)

    options = Options(memory="60KiB", microbatches=1, time_limit=60)
    with pytest.raises(NoSolution) as caught:
        plan(model, *example(256), mesh=TP2, options=options)
    (batch,) = re.findall(r"or for a batch of (\d+), ", str(caught.value))
    found = plan(model, *example(int(batch)), mesh=TP2, options=options)
    assert found.predicted.bytes <= parse_bytes("60KiB")
    (count,) = re.findall(r"or in (\d+) microbatches, ", str(caught.value))
    options = Options(memory="60KiB", microbatches=int(count))
    found = plan(model, *example(256), mesh=TP2, options=options)
    assert found.predicted.bytes <= parse_bytes("60KiB")


# --- what is tried, where it is known what would do


def batch_of(spec: InputSpec) -> int:
    x = spec.leaves["x"]
    assert isinstance(x, TensorType)
    return x.shape[0]


class Request:
    """What is asked for, as far as the tests here tell requests apart."""

    def __init__(self, captured: Captured, mesh: Mesh, options: Options) -> None:
        memory = options.memory
        self.num_bytes = 1 << 40 if memory is None else parse_bytes(memory)
        self.pins = frozenset(options.pins)
        self.ranks = mesh.size
        self.batch = batch_of(captured.inputs)
        self.is_fused = options.optimizer == "fused-adamw"
        self.in_parts = options.microbatches == "auto"
        self.time_limit = options.time_limit
        self.seconds = (1 if "up.weight" in self.pins else 2) / mesh.sizes[-1]


@cache
def captured_for(batch: int) -> Captured:
    x = torch.zeros(batch, 32)
    return capture(zoo.Perceptron(), (x, x), {})


@cache
def some_plan() -> Plan:
    model, args, _ = zoo.mlp()
    return plan(model, *args, mesh=TP2)


def recapture(spec: InputSpec) -> Captured:
    found = captured_for(batch_of(spec))
    assert found.inputs == spec
    return found


def explained(
    allows: Callable[[Request], bool],
    seconds: float = 60,
    least_bytes: int | None = 50_000,
    tried: list[Request] | None = None,
    mesh: Mesh = TP2,
    state_bytes: int = 0,
    **options: Any,
) -> str:
    """Return the text of a refusal where exactly what ``allows`` says has a plan."""

    def attempt(captured: Captured, mesh: Mesh, options: Options) -> Plan:
        request = Request(captured, mesh, options)
        if tried is not None:
            tried.append(request)
        if not allows(request):
            raise NoSolution("there is none")
        made = some_plan()
        predicted = replace(made.predicted, seconds=request.seconds)
        return replace(made, mesh=mesh, predicted=predicted)

    refused = Refused(
        captured_for(8),
        mesh,
        Options(**options),
        attempt,
        recapture,
        Clock.of(seconds),
    )
    text = str(refused.explained(NoSolution("refused", least_bytes, state_bytes)))
    return re.sub(r", [\d.]+ \w+ a step", "", text)


OVER = "the 40 s of time_limit were over before a way out was found"
PINS = {"up.weight": "(B,)", "up.bias": "(B,)", "down.weight": "(B,)"}
BOTH = {"up.weight", "down.weight"}


def test_each_of_the_pins_that_conflict_may_be_left_out_the_fastest_first() -> None:
    text = explained(
        lambda asked: asked.num_bytes >= 50_000 or not asked.pins >= BOTH,
        memory=1000,
        pins=PINS,
    )
    assert text == (
        "refused; what conflicts: memory and pin 'up.weight' and pin 'down.weight'; "
        "a plan was found without pin 'down.weight'; or without pin 'up.weight'; "
        "or within 48.83 KiB"
    )


def test_pins_that_conflict_one_by_one_are_left_out_together() -> None:
    text = explained(
        lambda asked: asked.num_bytes >= 50_000 or not asked.pins & BOTH,
        memory=1000,
        pins=PINS,
    )
    assert text == (
        "refused; what conflicts: memory and pin 'up.weight'; a plan was found without "
        "pin 'up.weight' and pin 'down.weight'; or within 48.83 KiB"
    )


def test_pins_may_conflict_without_a_limit() -> None:
    text = explained(lambda asked: not asked.pins >= BOTH, pins=PINS)
    assert text == (
        "refused; what conflicts: pin 'up.weight' and pin 'down.weight'; a plan was "
        "found without pin 'down.weight'; or without pin 'up.weight'"
    )


def test_a_limit_alone_may_be_to_blame() -> None:
    tried: list[Request] = []
    text = explained(
        lambda asked: asked.num_bytes >= 60_000, memory=1000, pins=PINS, tried=tried
    )
    assert text == "refused; no pin is to blame"
    assert {asked.ranks for asked in tried} == {2, 4, 8, 16}
    assert {asked.batch for asked in tried} == {8, 4, 2, 1}
    assert all(asked.in_parts for asked in tried)


WAYS: list[tuple[Callable[[Request], bool], str]] = [
    (lambda asked: asked.num_bytes >= 50_000, "within 48.83 KiB"),
    (lambda asked: asked.in_parts, "in 1 microbatch"),
    (
        lambda asked: asked.is_fused,
        "with optimizer='fused-adamw', as torch makes it with fused=True",
    ),
    (lambda asked: asked.ranks >= 8, "on 8 ranks (tp=8)"),
    (lambda asked: asked.batch <= 2, "for a batch of 2"),
]


@pytest.mark.parametrize(("allows", "way"), WAYS)
def test_what_would_help_is_told(allows: Callable[[Request], bool], way: str) -> None:
    text = explained(allows, memory=40_000, microbatches=2)
    assert text == f"refused; a plan was found {way}"


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_one_kernel_is_tried_where_an_update_takes_what_is_short(
    optimizer: str,
) -> None:
    up = zoo.Perceptron().up
    updated = up.bias.nbytes + 2 * up.weight.nbytes  # two of a tensor, one before it
    for limit in (50_000 - updated - 1, 50_000 - updated):
        tried: list[Request] = []
        explained(lambda _: False, memory=limit, tried=tried, optimizer=optimizer)
        is_enough = optimizer == "adamw" and limit == 50_000 - updated
        assert any(asked.is_fused for asked in tried) is is_enough


def test_what_does_not_go_with_the_rest_is_no_way_out() -> None:
    def allows(asked: Request) -> bool:
        if asked.batch < 8:
            raise BadOptions("microbatches is 8, which cuts dim 0 of no input")
        return asked.ranks >= 8

    text = explained(allows, memory=1000, microbatches=8)
    assert text == "refused; a plan was found on 8 ranks (tp=8)"


def test_one_axis_is_doubled_that_whose_plan_is_fastest() -> None:
    text = explained(lambda asked: asked.ranks >= 8, mesh=Mesh(dp=2, tp=2), memory=1000)
    assert text == "refused; a plan was found on 8 ranks (dp=2,tp=4)"


def test_where_no_memory_is_short_only_pins_are_looked_at() -> None:
    text = explained(lambda asked: asked.ranks > 2, least_bytes=None, memory=1000)
    assert text == "refused"


def test_what_holds_too_much_from_step_to_step_is_not_tried() -> None:
    tried: list[Request] = []
    inputs = 2 * 8 * 32 * 4
    explained(
        lambda _: False,
        state_bytes=inputs + 3000,
        tried=tried,
        memory=1000,
        microbatches=2,
    )
    short = [asked for asked in tried if asked.num_bytes == 1000]
    assert {asked.ranks for asked in short} == {8, 16}
    assert {asked.batch for asked in tried} == {8}
    assert not any(asked.in_parts for asked in tried)


def test_of_what_holds_too_much_by_itself_the_least_is_looked_for() -> None:
    """One number of microbatches alone was tried where no other would have helped."""

    def attempt(_: Captured, __: Mesh, options: Options) -> Plan:
        request = Request(captured_for(8), TP2, options)
        if request.num_bytes >= 30_000:
            return some_plan()
        raise NoSolution("there is none", 30_000 if request.num_bytes == 5000 else None)

    options, clock = Options(memory=1000), Clock.of(60)
    refused = Refused(captured_for(8), TP2, options, attempt, recapture, clock)
    refusal = refused.explained(NoSolution("of one batch", 50_000, 5000))
    assert refusal.least_bytes == 30_000
    assert "needs less than 29.3 KiB; parameters," in str(refusal)
    assert "; a plan was found within 29.3 KiB, " in str(refusal)
    refusal = refused.explained(NoSolution("of one batch", 20_000, 5000))
    assert str(refusal).startswith("of one batch"), "that was less"


def test_less_and_less_is_tried() -> None:
    tried: list[int] = []

    def attempt(_: Captured, __: Mesh, options: Options) -> Plan:
        request = Request(captured_for(8), TP2, options)
        tried.append(request.num_bytes)
        if request.num_bytes < 20_000:
            raise NoSolution("there is none")
        made = some_plan()
        predicted = replace(made.predicted, bytes=request.num_bytes)
        return replace(made, predicted=predicted)

    options, clock = Options(memory=1000), Clock.of(60)
    refused = Refused(captured_for(8), TP2, options, attempt, recapture, clock)
    refusal = refused.explained(NoSolution("refused", 100_000))
    assert refusal.least_bytes is not None
    assert 20_000 <= refusal.least_bytes < 22_500
    assert tried[:4] == pytest.approx([90_000, 72_900, 47_830, 20_589], rel=1e-3)
    room = re.findall(r"a plan was found within ([\d.]+ KiB), ", str(refusal))
    assert [parse_bytes(own) for own in room] == [refusal.least_bytes]


def test_what_is_not_found_again_is_told_of_what_was_known_first() -> None:
    limits: list[int] = []

    def attempt(_: Captured, __: Mesh, options: Options) -> Plan:
        request = Request(captured_for(8), TP2, options)
        limits.append(request.num_bytes)
        if request.num_bytes >= 50_000:
            return some_plan()
        raise NoSolution("there is none", 30_000)

    options, clock = Options(memory=1000), Clock.of(60)
    refused = Refused(captured_for(8), TP2, options, attempt, recapture, clock)
    text = str(refused.explained(NoSolution("of one batch", 50_000, 5000)))
    assert "needs less than 29.3 KiB" in text
    assert "; a plan was found within 48.83 KiB, " in text


def test_nothing_is_tried_once_the_time_is_over() -> None:
    tried: list[Request] = []
    text = explained(
        lambda _: True, seconds=0.0, tried=tried, memory=1000, pins=PINS, microbatches=2
    )
    assert (text, tried) == (f"refused; {OVER}", [])


def test_what_is_not_known_in_time_is_not_said() -> None:
    def allows(_: Request) -> bool:
        time.sleep(0.1)
        return True

    text = explained(allows, seconds=0.05, least_bytes=None, memory=1000, pins=PINS)
    assert text == f"refused; {OVER}"


def test_what_is_tried_has_the_time_that_is_left() -> None:
    tried: list[Request] = []
    explained(lambda _: False, seconds=5, tried=tried, memory=1000, time_limit=60)
    assert tried
    assert all(asked.time_limit <= 5 for asked in tried)
    assert tried[0].time_limit <= 2.5, "half of it is for what needs least"
    assert tried[-1].time_limit < tried[1].time_limit
