"""Passes run in order; what they require and ensure is checked, and they are blamed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from tests.compiler.ir.small_programs import Builder

from partita.compiler.errors import InvariantViolation
from partita.compiler.invariants import placed, well_formed
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import OutputKind, Program, info, update_info
from partita.passes.base import run_sequence

aten = torch.ops.aten


def relu(placed_as: str | None = "B -> B") -> Program:
    b = Builder(Mesh(tp=2))
    x = b.enter("x", "f32[4]", "B")
    node = b.call("relu/0", aten.relu.default, (x,), "f32[4]", placed_as)
    b.leave(OutputKind.OUTPUT, "y", node)
    return b.program()


@dataclass(frozen=True)
class Rename:
    """Appends to every call's key."""

    suffix: str
    name: ClassVar[str] = "rename"
    requires: ClassVar = (well_formed,)
    ensures: ClassVar = (well_formed,)

    def run(self, program: Program) -> Program:
        program = program.copy()
        for node in program.calls():
            update_info(node, key=info(node).key + self.suffix)
        return program


@dataclass(frozen=True)
class Forget:
    """Takes the placements away, though it promises them."""

    name: ClassVar[str] = "forget"
    requires: ClassVar = (placed,)
    ensures: ClassVar = (placed,)

    def run(self, program: Program) -> Program:
        program = program.copy()
        for node in program.calls():
            update_info(node, signature=None)
        return program


def test_passes_run_in_order_on_copies() -> None:
    before = relu()
    after = run_sequence(before, [Rename("-a"), Rename("-b")])
    assert [info(node).key for node in after.calls()] == ["relu/0-a-b"]
    assert [info(node).key for node in before.calls()] == ["relu/0"]


def test_no_passes_change_nothing() -> None:
    program = relu()
    assert run_sequence(program, []) is program


def test_what_a_pass_requires_is_checked_before_it() -> None:
    with pytest.raises(InvariantViolation) as caught:
        run_sequence(relu(None), [Rename("-a"), Forget()])
    assert str(caught.value) == (
        "relu/0-a (model.py:7) has no placements (placed, before pass forget (#2))"
    )


def test_what_a_pass_ensures_is_checked_after_it() -> None:
    with pytest.raises(InvariantViolation) as caught:
        run_sequence(relu(), [Forget(), Rename("-a")])
    assert str(caught.value) == (
        "relu/0 (model.py:7) has no placements (placed, after pass forget (#1))"
    )
