"""What identifies a captured model: its program, without devices or torch's version."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import fx

from partita.compiler.capture.constants import print_constants
from partita.compiler.capture.reading import Reading
from partita.compiler.ir.program import (
    Program,
    Value,
    info,
    op_name,
    operands,
    value_of,
)


def describe_node(node: fx.Node) -> str:
    """Return one line that says everything of a node but where it runs."""
    return _line(node, operands(node), print_constants(node))


def _line(node: fx.Node, used: Sequence[Value], constants: Sequence[str]) -> str:
    fact = info(node)
    uses = ", ".join([f"{info(v.node).key}#{v.index}" for v in used])
    types = ", ".join(map(str, fact.types))
    return f"{fact.key} = {op_name(node)}({uses}) {' '.join(constants)}: {types}"


def fingerprint(program: Program, reading: Reading | None = None) -> str:
    """Return a hash of the program: equal for equal models and input types.

    The order in which inputs are given, as keywords may be in any, is left out.
    ``reading`` is that of the program, where it was read already.
    """
    reading = reading or Reading.of(program)
    used, constants = reading.used, reading.constants
    digest = hashlib.sha256()
    entering = sorted(describe_node(node) for node, _ in program.placeholders())
    calls = (_line(node, used[node], constants[node]) for node in reading.calls)
    for line in (*entering, *calls):
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
