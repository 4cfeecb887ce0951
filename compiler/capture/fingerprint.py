"""What identifies a captured model: its program, without devices or torch's version."""

from __future__ import annotations

import hashlib
from typing import cast

import torch
from torch import fx

from partita.compiler.ir.program import (
    Program,
    info,
    op_name,
    operands,
    value_of,
)

_SEQUENCES = list, tuple
_PLACES = ("device", "pin_memory", "layout")


def print_constants(node: fx.Node) -> tuple[str, ...]:
    """Return a call's arguments that are no tensors, printed; devices left out."""
    found: list[str] = []
    for position, arg in enumerate(node.args):
        if not isinstance(arg, fx.Node):
            text = _text(arg)
            if text is not None:
                found.append(f"{position}={text}")
    for name, arg in sorted(node.kwargs.items()) if node.kwargs else ():
        if name not in _PLACES:
            text = _text(arg)
            if text is not None:
                found.append(f"{name}={text}")
    return tuple(found)


def _text(value: object) -> str | None:
    """Return an argument printed, ``None`` where there is a node in it."""
    if type(value) is int:
        return str(value)
    if isinstance(value, _SEQUENCES):
        items: list[str] = []
        for item in cast("list[object]", value):
            text = _text(item)
            if text is None:
                return None
            items.append(text)
        return f"[{', '.join(items)}]"
    if isinstance(value, fx.Node):
        return None
    return "device" if isinstance(value, torch.device) else str(value)


def describe_node(node: fx.Node) -> str:
    """Return one line that says everything of a node but where it runs."""
    fact = info(node)
    uses = ", ".join([f"{info(v.node).key}#{v.index}" for v in operands(node)])
    types = ", ".join(map(str, fact.types))
    constants = " ".join(print_constants(node))
    return f"{fact.key} = {op_name(node)}({uses}) {constants}: {types}"


def fingerprint(program: Program) -> str:
    """Return a hash of the program: equal for equal models and input types.

    The order in which inputs are given, as keywords may be in any, is left out.
    """
    digest = hashlib.sha256()
    entering = sorted(describe_node(node) for node, _ in program.placeholders())
    for line in (*entering, *map(describe_node, program.calls())):
        digest.update(f"{line}\n".encode())
    for node, role in program.results():
        value = value_of(node)
        line = f"{role.kind}:{role.name} = {info(value.node).key}#{value.index}\n"
        digest.update(line.encode())
    return digest.hexdigest()


def is_same_program(one: Program, other: Program) -> bool:
    """Whether two programs compute the same, by constants of the same values."""
    pairs = zip(one.constants, other.constants, strict=True)
    return fingerprint(one) == fingerprint(other) and all(
        torch.equal(one.constants[a], other.constants[b]) for a, b in pairs
    )
