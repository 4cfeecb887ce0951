"""A program is of every call: what one call of a model leaves may not change the next.

What a call leaves in attributes is looked at by capturing the model again as it is
then. What was read once, and kept, is no state: neither the call's inputs nor what
training changes is in it, and it would be the same made anew.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import fx

from partita.compiler.capture.attributes import LEFT, Changes, as_left
from partita.compiler.capture.fingerprint import is_same_program
from partita.compiler.errors import CaptureFailed
from partita.compiler.ir.program import InputKind, Program

_MOST_NAMED = 3


class Traced(Protocol):
    """Traces a model as its attributes are, showing what it leaves there if asked."""

    def __call__(self, *, shows_left: bool = False) -> Program:
        """Return its program."""
        ...


def check_next_call(
    model: torch.nn.Module, left: Changes, program: Program, traced: Traced
) -> None:
    """Check that ``model`` computes behind a call what it does before it.

    Args:
        model: what is traced.
        left: what a call of it leaves.
        program: what was traced.
        traced: traces it again.

    Raises:
        CaptureFailed: naming the attributes that its next call would go by.
    """
    if not left or not _changes(model, left, program, traced):
        return
    if _has_tensors(left) and not _is_of_call(traced(shows_left=True)):
        return
    alone = [change for change in left if _changes(model, (change,), program, traced)]
    paths = {part: path for path, part in model.named_modules()}
    names = [
        repr(f"{paths[change.module]}.{change.name}".lstrip("."))
        for change in alone or left
    ]
    named = ", ".join(names[:_MOST_NAMED]) + (", ..." if names[_MOST_NAMED:] else "")
    raise CaptureFailed(
        f"cannot capture {type(model).__name__}: a call changes {named}, and its next "
        "call computes something else by that, where a program does the same in every "
        "step; keep it in a buffer of the same shape (register_buffer) and compute by "
        "its value, or give it as an input"
    )


def _has_tensors(left: Changes) -> bool:
    return any(change.tensors for change in left)


def _changes(
    model: torch.nn.Module, left: Changes, program: Program, traced: Traced
) -> bool:
    """Whether a model whose attributes are so is another one."""
    with as_left(model, left):
        try:
            return not is_same_program(traced(), program)
        except CaptureFailed:
            return True


def _is_of_call(program: Program) -> bool:
    """Whether a tensor left in attributes depends on inputs or on what is trained."""
    changed = program.changed
    inputs = dict(program.placeholders())
    seen: set[fx.Node] = set()
    ahead = [node for node, role in program.results() if LEFT in role.name]
    while ahead:
        node = ahead.pop()
        if node in seen:
            continue
        seen.add(node)
        ahead += node.all_input_nodes
    return any(
        role.kind is InputKind.INPUT or role.name in changed
        for node, role in inputs.items()
        if node in seen
    )
