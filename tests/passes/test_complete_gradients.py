"""What completes sums over microbatches: small programs of a box, set apart."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from tests.models import zoo
from tests.models.storage_pins import storage_pins
from torch import nn

from partita.compiler.errors import InvariantViolation
from partita.compiler.ir.boxing import is_box
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import (
    InputKind,
    OutputKind,
    Program,
    Value,
    info,
    placement_of,
    set_info,
)
from partita.compiler.ir.signature import Signature
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.uses import completes
from partita.compiler.rules.table import default_rules
from partita.lowering import Lowered, capture_for
from partita.options import Options
from partita.passes.base import run_sequence
from partita.passes.complete_gradients import complete_gradients, without_completing
from partita.passes.sequence import sequence
from partita.planning import plan


@cache
def boxed(count: int, bucket: int = 0) -> tuple[Program, Plan]:
    """Return an MLP's program, stored in pieces, with all its boxings."""
    built = zoo.mlp()
    pins = storage_pins(built, "zero3", 1)
    options = Options(pins=pins, microbatches=count, bucket=bucket)
    found = plan(built[0], *built[1], mesh=Mesh(dp=2), options=options)
    program = capture_for(built[0], found).program
    return run_sequence(program, sequence(found, default_rules)), found


def boxes(program: Program) -> set[str]:
    return {info(node).key for node in program.calls() if is_box(node)}


def test_a_batch_in_one_piece_stays_as_it_is() -> None:
    program, found = boxed(1)
    assert without_completing(program, found) is program
    assert list(complete_gradients(program, found)) == []


def test_reductions_of_gradients_and_the_loss_stand_apart() -> None:
    program, found = boxed(2)
    body = without_completing(program, found)
    late = {boxing.key for boxing in found.boxings if completes(boxing)}
    entering = {boxing.key for boxing in found.boxings if boxing.enters}
    assert late
    assert boxes(program) == {b.key for b in found.boxings} - entering
    assert boxes(body) == boxes(program) - late
    programs = list(complete_gradients(program, found))
    assert {key for apart in programs for key in boxes(apart)} == late
    for apart in programs:
        ((_, role),) = apart.placeholders()
        assert role.kind is InputKind.ACCUMULATED
        assert role.name == str(apart.outputs[0])
        assert all(out.kind.adds_up for out in apart.outputs)


def test_the_sums_of_a_bucket_are_completed_by_one_program() -> None:
    program, found = boxed(2, bucket=2**20)
    late = {boxing.key for boxing in found.boxings if completes(boxing)}
    (bucket,) = (keys for keys in found.buckets if set(keys) <= late)
    programs = list(complete_gradients(program, found))
    assert len(programs) == 1 + len(late) - len(bucket)
    (together,) = (apart for apart in programs if boxes(apart) == set(bucket))
    entering = [role.name for _, role in together.placeholders()]
    assert entering == [str(role) for role in together.outputs]


class Summed(nn.Module):
    """Two parameters with one gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.ones(4, 4))
        self.second = nn.Parameter(torch.ones(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ (self.first + self.second)).square().sum()


def test_one_sum_may_leave_as_several_gradients() -> None:
    names = ("first", "second")
    pins = {"x": "S(0)", "first": "B", "second": "B"}
    options = Options(pins=pins, microbatches=2, hardware="cpu-gloo-free")
    model, x = Summed(), torch.ones(8, 4)
    found = plan(model, x, mesh=Mesh(dp=2), options=options)
    program = run_sequence(
        capture_for(model, found).program, sequence(found, default_rules)
    )
    programs = list(complete_gradients(program, found))
    (apart,) = [p for p in programs if p.outputs[0].kind is OutputKind.GRADIENT]
    assert tuple(role.name for role in apart.outputs) == names
    assert apart.inputs[0].name == "gradient:first"


def test_a_program_that_used_what_is_set_apart_is_refused() -> None:
    program, found = boxed(2)
    program = program.copy()
    late = {boxing.key for boxing in found.boxings if completes(boxing)}
    node = next(n for n in program.calls() if info(n).key in late)
    with program.graph.inserting_after(node):
        user = program.graph.call_function(torch.ops.aten.neg.default, (node,))
    whole = placement_of(Value(node, 0))
    fact = replace(info(node), key="used", signature=Signature((whole,), (whole,)))
    set_info(user, fact)
    with pytest.raises(InvariantViolation, match="used"):
        without_completing(program, found)


def test_gradients_leave_a_microbatch_as_they_are_made() -> None:
    program, found = boxed(2)
    lowered = Lowered(without_completing(program, found), (), found, default_rules, {})
    made = {
        role.name: str(info(node).signature).rpartition("-> ")[2]
        for node, role in lowered.program.results()
        if role.kind is OutputKind.GRADIENT
    }
    assert set(made.values()) == {"(P(sum),)"}
