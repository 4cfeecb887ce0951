"""Each invariant passes a sound program, and names the one thing that is corrupt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tests.compiler.ir.small_programs import Builder, signature
from torch import fx

from partita.compiler.errors import InvariantViolation
from partita.compiler.invariants import matched, placed, settled, well_formed
from partita.compiler.ir.boxing import box
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import (
    InputKind,
    OutputKind,
    Program,
    info,
    update_info,
)

aten = torch.ops.aten


def sound() -> Program:
    """Return a step of ``y = relu(x @ w)``, w split by rows, with its gradient."""
    b = Builder(Mesh(tp=2))
    w = b.enter("w", "f32[4, 6]", "S(0)", InputKind.PARAMETER)
    count = b.enter("count", "f32[]", "B", InputKind.BUFFER)
    x = b.enter("x", "f32[8, 4]", "S(1)")
    mm = b.call("mm/0", aten.mm.default, (x, w), "f32[8, 6]", "S(1), S(0) -> P")
    full = b.call("mm/0#0 -> B", box, (mm, "(P(sum),)", "(B,)"), "f32[8, 6]", "P -> B")
    loss = b.call("sum/0", aten.sum.default, (full,), "f32[]", "B -> B")
    more = b.call("add/0", aten.add.Tensor, (count, 1.0), "f32[]", "B -> B")
    b.leave(OutputKind.LOSS, "loss", loss)
    b.leave(OutputKind.MUTATED_BUFFER, "count", more)
    b.leave(OutputKind.GRADIENT, "w", w)  # as if it were
    return b.program()


ALL = (well_formed, placed, matched, settled)


@pytest.mark.parametrize("invariant", ALL)
def test_sound_program_holds(invariant: Callable[[Program], None]) -> None:
    invariant(sound())
    assert len(sound().outputs) == 3


def node(program: Program, key: str) -> fx.Node:
    (found,) = [n for n in program.nodes() if info(n).key == key]
    return found


def place(program: Program, key: str, text: str) -> Program:
    update_info(node(program, key), signature=signature(text))
    return program


def no_mesh(program: Program) -> Program:
    return replace(program, mesh=None)


def no_signature(program: Program) -> Program:
    update_info(node(program, "mm/0"), signature=None)
    return program


def no_info(program: Program) -> Program:
    node(program, "sum/0").meta.clear()
    return program


def same_key(program: Program) -> Program:
    update_info(node(program, "sum/0"), key="mm/0")
    return program


def out_of_order(program: Program) -> Program:
    node(program, "mm/0").prepend(node(program, "sum/0"))
    return program


def other_promise(program: Program) -> Program:
    boxed = node(program, "mm/0#0 -> B")
    boxed.args = (boxed.args[0], "(P(sum),)", "(S(0),)")
    return program


def unboxed(program: Program) -> Program:
    boxed = node(program, "mm/0#0 -> B")
    boxed.replace_all_uses_with(node(program, "mm/0"))
    return program


def partial_loss(program: Program) -> Program:
    place(program, "sum/0", "B -> P")
    return program


def one_role_less(program: Program) -> Program:
    return replace(program, inputs=program.inputs[1:])


def one_output_more(program: Program) -> Program:
    return replace(program, outputs=(*program.outputs, program.outputs[0]))


CORRUPT: list[tuple[Callable[[Program], None], Callable[[Program], Program], str]] = [
    (well_formed, no_info, "node sum_default has no info"),
    (well_formed, same_key, "two nodes have the key 'mm/0'"),
    (
        well_formed,
        out_of_order,
        "the graph is malformed: Argument 'box' of Node 'sum_default' was used before "
        "it has been defined! Please check that Nodes in the graph are topologically "
        "ordered",
    ),
    (well_formed, one_role_less, "3 placeholders have 2 roles"),
    (well_formed, one_output_more, "3 outputs have 4 roles"),
    (placed, no_mesh, "the program has no mesh"),
    (placed, no_signature, "mm/0 (model.py:7) has no placements"),
    (
        placed,
        lambda p: place(p, "mm/0", "S(1) -> P"),
        "mm/0 (model.py:7): signature (S(1),) -> (P(sum),) is for 1 operands and 1 "
        "results; the node has 2 and 1",
    ),
    (
        placed,
        lambda p: place(p, "mm/0", "S(1), S(0) -> None"),
        "mm/0 (model.py:7): (S(1),), (S(0),) -> None places what is no tensor, or "
        "leaves a tensor without a placement",
    ),
    (
        placed,
        lambda p: place(p, "mm/0", "S(2), S(0) -> P"),
        "mm/0 (model.py:7): placement (S(2),): S(2) names dim 2, but shape [8, 4] has "
        "2 dims",
    ),
    (
        placed,
        lambda p: place(p, "mm/0", "S(1) B, S(0) B -> P B"),
        "mm/0 (model.py:7): placement (S(1), B) has 2 entries, mesh tp=2 has 1 axes; "
        "give one entry per axis",
    ),
    (matched, no_signature, "mm/0 (model.py:7) has no placements"),
    (
        matched,
        unboxed,
        "sum/0 (model.py:7) wants mm/0 as (B,), found (P(sum),)",
    ),
    (
        matched,
        other_promise,
        "mm/0#0 -> B (model.py:7) boxes (P(sum),) -> (S(0),), its signature says "
        "(P(sum),) -> (B,)",
    ),
    (settled, partial_loss, "loss loss leaves as (P(sum),)"),
    (
        settled,
        lambda p: place(p, "sum/0", "B -> S(0)"),
        "the loss leaves as (S(0),), not as B",
    ),
    (
        settled,
        lambda p: place(p, "add/0", "B -> S(0)"),
        "mutated-buffer count leaves as (S(0),), stored as (B,)",
    ),
]


@pytest.mark.parametrize(("invariant", "corrupt", "message"), CORRUPT)
def test_corrupt_program_is_named(
    invariant: Callable[[Program], None],
    corrupt: Callable[[Program], Program],
    message: str,
) -> None:
    with pytest.raises(InvariantViolation) as caught:
        invariant(corrupt(sound()))
    assert str(caught.value).splitlines()[0] == message


def test_gradient_may_leave_in_another_placement_than_its_parameter_has() -> None:
    program = sound()
    (output,) = program.graph.find_nodes(op="output")
    (kept,) = output.args
    assert isinstance(kept, tuple)
    output.args = ((*kept[:2], node(program, "mm/0#0 -> B")),)
    settled(program)
    output.args = ((*kept[:2], node(program, "mm/0")),)
    with pytest.raises(InvariantViolation) as caught:
        settled(program)
    assert str(caught.value) == "gradient w leaves as (P(sum),)"
