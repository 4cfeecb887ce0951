"""The last backward, cut where gradients are whole; what completes them, in halves."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
from tests.models import zoo
from torch import fx

import partita as pt
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.program import InputKind, OutputKind, has_info, info
from partita.compiler.local_invariants import (
    Issued,
    collectives_of,
    is_collective,
    local,
)
from partita.lowering import Lowered, capture_for
from partita.passes.reduce_beside import reduce_beside
from partita.passes.split_phases import split_phases

Parts = tuple[LocalProgram, tuple[LocalProgram, ...]]


@cache
def parts(bucket: int) -> Parts:
    """Return the backward of an MLP on two ranks, and what completes its sums."""
    built = zoo.mlp()
    pins = zoo.data_parallel_pins(built, 1)
    options = pt.Options(pins=pins, microbatches=2, bucket=bucket)
    plan = pt.plan(built[0], *built[1], mesh="dp=2", options=options)
    lowered = Lowered.of(capture_for(built[0], plan), plan, pt.default_rules)
    return split_phases(lowered.at((0,)), 2)[1], lowered.completing_at((0,))


def calls(program: LocalProgram) -> Counter[str]:
    nodes: list[fx.Node] = list(program.graph_module.graph.nodes)
    ops = ("call_function", "call_module")
    return Counter(info(n).key for n in nodes if n.op in ops and has_info(n))


def sums_of(program: LocalProgram) -> list[str]:
    kind = InputKind.ACCUMULATED
    return [role.name for role in program.inputs if role.kind is kind]


@pytest.mark.parametrize("bucket", [0, 1 << 20])
def test_phases_compute_what_the_backward_does(bucket: int) -> None:
    backward, completing = parts(bucket)
    closing = reduce_beside(backward, completing, range(len(completing)))
    assert closing is not None
    found = sum((calls(phase) for phase in closing.phases), Counter[str]())
    assert found == calls(backward)
    leaving = [
        str(role)
        for phase in closing.phases
        for role in phase.outputs
        if role.kind is not OutputKind.SAVED
    ]
    assert sorted(leaving) == sorted(map(str, backward.outputs))


@pytest.mark.parametrize("bucket", [0, 1 << 20])
def test_a_sum_is_sent_as_soon_as_it_is_whole(bucket: int) -> None:
    backward, completing = parts(bucket)
    closing = reduce_beside(backward, completing, range(len(completing)))
    assert closing is not None
    made: set[str] = set()
    for phase, begun in zip(closing.phases, closing.begun, strict=True):
        new = {str(role) for role in phase.outputs}
        made |= new
        for number in begun:
            sums = sums_of(completing[number])
            assert made.issuperset(sums)
            assert new.intersection(sums), "else it could have begun before"
    begun = [number for own in closing.begun for number in own]
    assert sorted(begun) == sorted(closing.halves)
    if not bucket:
        assert len(closing.phases) > 2
        assert closing.begun[0]


def test_a_half_ends_with_a_message_and_the_other_waits_for_it() -> None:
    backward, completing = parts(0)
    closing = reduce_beside(backward, completing, range(len(completing)))
    assert closing is not None
    for number, (first, second) in closing.halves.items():
        *_, last = (n for n in first.graph_module.graph.nodes if n.op != "output")
        assert is_collective(last)
        assert not any(map(is_collective, second.graph_module.graph.nodes))
        assert second.outputs == completing[number].outputs
        assert sums_of(first) == sums_of(completing[number])
        (saved,) = first.outputs
        assert [role.name for role in second.inputs] == [saved.name]


def test_what_is_not_to_begin_or_was_made_before_does_not() -> None:
    backward, completing = parts(0)
    assert reduce_beside(backward, completing, ()) is None
    made = {str(role) for role in backward.outputs}
    before = [n for n, p in enumerate(completing) if not made.issuperset(sums_of(p))]
    assert before, "the forward makes the loss"
    assert reduce_beside(backward, completing, before) is None


def test_collectives_are_told_in_the_order_in_which_they_begin() -> None:
    backward, completing = parts(0)
    closing = reduce_beside(backward, completing, range(len(completing)))
    assert closing is not None
    every: list[tuple[Issued, ...]] = [local(program) for program in completing]
    found = list(collectives_of(closing, local(backward), every))
    begun = [number for own in closing.begun for number in own]
    late = [number for number in range(len(completing)) if number not in begun]
    assert found == [call for n in (*begun, *late) for call in every[n]]
    assert begun != sorted(begun), "the last layer's gradients are whole first"
