"""Programs of stages: what crosses, what enters where, and that they are the whole."""

from __future__ import annotations

from typing import Any

import pytest
from tests.models.dropout import with_dropout
from tests.models.pipelines import PIPELINES

from partita.compiler.capture.capture import capture
from partita.compiler.errors import BadPlan
from partita.compiler.ir.program import (
    InputKind,
    OutputKind,
    Phase,
    Program,
    info,
    update_info,
)
from partita.compiler.search.cut_line import Line
from partita.compiler.search.stage_of import stage_of
from partita.passes.annotate_stages import AnnotateStages
from partita.passes.base import run_sequence
from partita.passes.cut_stages import cut_stages
from partita.passes.share_gradients import ShareGradients


def annotated(built: Any, ends: tuple[int, ...]) -> Program:
    """Return a model's program, cut behind so many calls of the forward."""
    model, args, kwargs = built
    program = capture(model, args, kwargs).program
    forward = Line.of(program).forward
    stages = {k: sum(at >= end for end in ends) for at, k in enumerate(forward)}
    return AnnotateStages(stage_of(program, stages)).run(program)


def cut(built: Any, *ends: int) -> tuple[Program, ...]:
    program = run_sequence(annotated(built, ends), (ShareGradients(),))
    return cut_stages(program, len(ends) + 1)


def inputs(program: Program, kind: InputKind) -> list[str]:
    return [role.name for role in program.inputs if role.kind is kind]


def outputs(program: Program, kind: OutputKind) -> list[str]:
    return [role.name for role in program.outputs if role.kind is kind]


@pytest.mark.parametrize("name", ["chain", "diamond", "hourglass", "tied"])
def test_stages_share_the_calls_and_pair_up(name: str) -> None:
    built = PIPELINES[name]()
    whole = annotated(built, (3, 6))
    stages = cut(built, 3, 6)
    keys = [info(node).key for stage in stages for node in stage.calls()]
    assert len(keys) == len(set(keys))
    sums = {info(node).key for node in whole.calls()} - set(keys)
    assert all("add.Tensor" in key for key in sums)
    sent: set[tuple[str, str]] = set()
    taken: set[tuple[str, str]] = set()
    for number, stage in enumerate(stages):
        for role in stage.outputs:
            if role.kind.is_sent:
                sent.add((role.kind.value.partition("-")[2], role.name))
        for role in stage.inputs:
            if role.kind.is_received:
                way = role.kind.value.partition("-")[2]
                taken.add((way, f"{role.name} to stage {number}"))
    assert sent == taken
    assert {way for way, _ in sent} == {"forward", "backward"}


def test_a_skip_goes_straight_over_the_stages_between() -> None:
    first, middle, last = cut(PIPELINES["hourglass"](), 3, 6)
    ways = [name.rpartition(" ")[2] for name in outputs(first, OutputKind.SENT_FORWARD)]
    assert set(ways) == {"1", "2"}
    passed_on = outputs(middle, OutputKind.SENT_FORWARD)
    taken = inputs(last, InputKind.RECEIVED_FORWARD)
    assert len(taken) == len(passed_on) + ways.count("2"), (taken, passed_on, ways)


def test_a_tied_parameter_has_one_home_and_a_part_of_its_gradient_elsewhere() -> None:
    first, last = cut(with_dropout("gpt2"), 20)
    name = "transformer.wte.weight"
    assert name in inputs(first, InputKind.PARAMETER)
    assert name in outputs(first, OutputKind.GRADIENT)
    assert inputs(last, InputKind.SHARED) == [name]
    assert outputs(last, OutputKind.SHARED_GRADIENT) == [f"{name} of stage 1"]


def test_the_batch_enters_where_it_is_used_and_the_loss_leaves_once() -> None:
    first, last = cut(with_dropout("gpt2"), 20)
    assert inputs(first, InputKind.INPUT) == ["input_ids"]
    assert inputs(last, InputKind.INPUT) == ["labels"]
    assert not outputs(first, OutputKind.LOSS)
    assert outputs(last, OutputKind.LOSS) == ["loss"]
    phases = {info(node).phase for node in last.calls()}
    assert {Phase.FORWARD, Phase.BACKWARD_INPUT} <= phases


def test_a_forward_that_goes_back_is_refused() -> None:
    program = annotated(PIPELINES["chain"](), (3,))
    last = [n for n in program.calls() if info(n).phase is Phase.FORWARD][-1]
    update_info(last, stage=0)
    with pytest.raises(BadPlan) as error:
        cut_stages(program, 2)
    assert "of stage 1, forward, is used by" in str(error.value)
    assert f"{info(last).key!r} of stage 0, forward" in str(error.value)
