"""Small programs written by hand, and any program as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from partita.compiler.ir.boxing import is_box
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import (
    InputKind,
    InputRole,
    NodeInfo,
    OutputKind,
    OutputRole,
    Phase,
    Program,
    info,
    op_name,
    operands,
    set_info,
    value_of,
)
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.signature import Signature
from partita.compiler.ir.tensor_type import TensorType


def signature(text: str) -> Signature:
    """Read ``S(0;2|4), B -> P`` for one axis, ``S(0) B, B B -> P B`` for two."""
    left, right = (
        tuple(_placement(part) for part in side.split(",") if part.strip())
        for side in text.split("->")
    )
    return Signature(tuple(p for p in left if p), right)


def _placement(text: str) -> Placement | None:
    words = text.split()
    return None if words == ["None"] else Placement.parse(f"({', '.join(words)},)")


class Builder:
    """Writes a program node by node; ``placed`` texts are as ``signature`` reads."""

    def __init__(self, mesh: Mesh | None = None) -> None:
        self.mesh = mesh
        self.graph = fx.Graph()
        self.inputs: list[InputRole] = []
        self.outputs: list[tuple[fx.Node, OutputRole]] = []

    def enter(
        self,
        name: str,
        type: str,
        placed: str | None = None,
        kind: InputKind = InputKind.INPUT,
    ) -> fx.Node:
        node = self.graph.placeholder(name.replace(".", "_"))
        chosen = None if placed is None else signature(f"-> {placed}")
        types = (TensorType.parse(type),)
        set_info(
            node, NodeInfo(f"{kind}:{name}", Phase.FORWARD, types, signature=chosen)
        )
        self.inputs.append(InputRole(kind, name))
        return node

    def call(
        self,
        key: str,
        target: Callable[..., Any],
        args: Sequence[Any],
        types: str,
        placed: str | None = None,
        phase: Phase = Phase.FORWARD,
    ) -> fx.Node:
        """Write a call; ``types`` are parted by semicolons, ``None`` among them."""
        node = self.graph.call_function(target, tuple(args))
        found = tuple(
            None if part.strip() == "None" else TensorType.parse(part.strip())
            for part in types.split(";")
        )
        chosen = None if placed is None else signature(placed)
        set_info(node, NodeInfo(key, phase, found, "", "model.py:7", signature=chosen))
        return node

    def leave(self, kind: OutputKind, name: str, node: fx.Node) -> None:
        self.outputs.append((node, OutputRole(kind, name)))

    def program(self) -> Program:
        self.graph.output(tuple(node for node, _ in self.outputs))
        return Program(
            fx.GraphModule(torch.nn.Module(), self.graph),
            tuple(self.inputs),
            tuple(role for _, role in self.outputs),
            self.mesh,
        )


def show(program: Program) -> str:
    """Return a program as text: a line per call, then one per output."""
    lines: list[str] = []
    for node in program.calls():
        fact = info(node)
        made = "" if fact.signature is None else fact.signature.results
        placed = "".join(f" {p}" for p in made)
        types = ", ".join(str(t) for t in fact.types)
        uses = [
            f"{info(v.node).key}" + f"#{v.index}" * (v.index > 0)
            for v in operands(node)
        ]
        op = "box" if is_box(node) else op_name(node)
        lines.append(f"{fact.key}: {types}{placed} = {op}({', '.join(uses)})")
    for node, role in program.results():
        lines.append(f"{role.kind}:{role.name} = {info(value_of(node).node).key}")
    return "\n".join(lines)
