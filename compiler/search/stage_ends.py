"""What a stage's program takes and gives, and what programs are alike.

Two stages that compute the same are planned alike, wherever they lie and however their
calls are called; so the plan of one tells what the other takes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from torch import fx

from partita.compiler.capture.constants import print_constants
from partita.compiler.ir.program import (
    InputKind,
    OutputKind,
    Program,
    Value,
    info,
    op_name,
    operands,
    type_of,
    value_of,
)
from partita.compiler.ir.stages import receiver_of, sender_of
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.stage_records import TransferKind

Tensor = tuple[TransferKind, str]
"""What is handed over: how, and its reference or the name of the parameter."""

_TAKEN = {
    InputKind.RECEIVED_FORWARD: TransferKind.FORWARD,
    InputKind.RECEIVED_BACKWARD: TransferKind.BACKWARD,
    InputKind.SHARED: TransferKind.STATE,
}
_SENT = {
    OutputKind.SENT_FORWARD: TransferKind.FORWARD,
    OutputKind.SENT_BACKWARD: TransferKind.BACKWARD,
}


@dataclass(frozen=True)
class StageEnds:
    """Where the tensors that stages hand each other stand in the program of one.

    Attributes:
        takes: which input each tensor that another stage hands over is, and its type.
        gives: which output each tensor is that others are handed.
        holds: which input each parameter or buffer is that is at home here.
        sums: which output each gradient is that is at home here, and its type.
    """

    takes: Mapping[Tensor, tuple[int, TensorType]]
    gives: Mapping[Tensor, int]
    holds: Mapping[str, int]
    sums: Mapping[str, tuple[int, TensorType]]

    @staticmethod
    def of(program: Program) -> StageEnds:
        """Return the ends of a stage's program."""
        takes: dict[Tensor, tuple[int, TensorType]] = {}
        holds: dict[str, int] = {}
        for at, (node, role) in enumerate(program.placeholders()):
            if role.kind in _TAKEN:
                type_ = type_of(Value(node, 0))
                takes[_TAKEN[role.kind], role.name] = at, type_
            elif role.kind.is_state:
                holds[role.name] = at
        gives: dict[Tensor, int] = {}
        sums: dict[str, tuple[int, TensorType]] = {}
        for at, (node, role) in enumerate(program.results()):
            if role.kind in _SENT:
                gives[_SENT[role.kind], receiver_of(role.name)[0]] = at
            elif role.kind is OutputKind.SHARED_GRADIENT:
                gives[TransferKind.GRADIENT, sender_of(role.name)[0]] = at
            elif role.kind is OutputKind.GRADIENT:
                sums[role.name] = at, type_of(value_of(node))
        return StageEnds(takes, gives, holds, sums)


@dataclass(frozen=True)
class StageProgram:
    """The program of a stage, its ends, and what programs like it have in common."""

    program: Program

    @cached_property
    def ends(self) -> StageEnds:
        """Where what it takes and gives stands."""
        return StageEnds.of(self.program)

    @cached_property
    def structure(self) -> str:
        """Equal for programs that compute the same; names and stages do not count."""
        digest = hashlib.sha256()
        number: dict[fx.Node, int] = {}
        roles = dict(self.program.placeholders())
        for node in self.program.nodes():
            number[node] = len(number)
            uses = [(number[v.node], v.index) for v in operands(node)]
            fact, role = info(node), roles.get(node)
            kind = "" if role is None else role.kind
            types = ", ".join(map(str, fact.types))
            what = op_name(node), kind, fact.phase, uses, print_constants(node), types
            digest.update(f"{what}\n".encode())
        for node, role in self.program.results():
            value = value_of(node)
            home = None
            if role.kind is OutputKind.GRADIENT:
                home = self.ends.holds.get(role.name)
            what = role.kind, number[value.node], value.index, home
            digest.update(f"{what}\n".encode())
        digest.update(str(self.program.in_time).encode())
        return digest.hexdigest()
