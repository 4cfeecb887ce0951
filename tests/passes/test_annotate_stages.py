"""Stages on calls, as a plan has them."""

from __future__ import annotations

import pytest
from tests.models.pipelines import PIPELINES

from partita.compiler.capture.capture import capture
from partita.compiler.errors import BadPlan
from partita.compiler.ir.program import info
from partita.passes.annotate_stages import AnnotateStages


def test_calls_get_their_stages_and_the_program_stays() -> None:
    model, args, kwargs = PIPELINES["chain"]()
    program = capture(model, args, kwargs).program
    stages = {info(n).key: i % 2 for i, n in enumerate(program.calls())}
    found = AnnotateStages(stages).run(program)
    assert {info(n).key: info(n).stage for n in found.calls()} == stages
    assert {info(n).stage for n in program.calls()} == {0}


def test_what_is_in_no_plan_is_with_the_first_of_its_parts() -> None:
    model, args, kwargs = PIPELINES["chain"]()
    program = capture(model, args, kwargs).program
    last = list(program.calls())[-1]
    stages = {info(n).key: 3 for n in program.calls() if n is not last}
    found = AnnotateStages(stages).run(program)
    assert {info(n).stage for n in found.calls()} == {3}


def test_a_call_of_no_stage_is_named() -> None:
    model, args, kwargs = PIPELINES["chain"]()
    program = capture(model, args, kwargs).program
    first = info(next(program.calls())).key
    with pytest.raises(BadPlan, match=f"stages: no stage has {first!r}"):
        AnnotateStages({}).run(program)
