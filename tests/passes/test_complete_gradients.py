"""What completes sums over microbatches: small programs of a box, set apart."""

from __future__ import annotations

from functools import cache

from tests.models import zoo
from tests.models.storage_pins import storage_pins

from partita.compiler.ir.boxing import is_box
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import InputKind, OutputKind, Program, info
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
def boxed(count: int) -> tuple[Program, Plan]:
    """Return an MLP's program, stored in pieces, with all its boxings."""
    built = zoo.mlp()
    pins = storage_pins(built, "zero3", 1)
    options = Options(pins=pins, microbatches=count)
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


def test_gradients_leave_a_microbatch_as_they_are_made() -> None:
    program, found = boxed(2)
    lowered = Lowered(without_completing(program, found), (), found, default_rules, {})
    made = {
        role.name: str(info(node).signature).rpartition("-> ")[2]
        for node, role in lowered.program.results()
        if role.kind is OutputKind.GRADIENT
    }
    assert set(made.values()) == {"(P(sum),)"}
