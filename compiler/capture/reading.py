"""What the nodes of a program use and call, read off them once for all that ask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from torch import fx

from partita.compiler.capture.constants import print_constants
from partita.compiler.ir.program import Program, Value
from partita.compiler.rules.calls import read_calls
from partita.compiler.rules.rule import Call


@dataclass(frozen=True)
class Reading:
    """The nodes of a program that is not changed any more.

    Attributes:
        used: the operands of every node, in the program's order.
        calls: what every node that computes calls; equal calls are one object.
        constants: the arguments of those that are no tensors, printed; equal ones are
            one object.
    """

    used: Mapping[fx.Node, list[Value]]
    calls: Mapping[fx.Node, Call]
    constants: Mapping[fx.Node, tuple[str, ...]]

    @classmethod
    def of(cls, program: Program) -> Reading:
        """Read the nodes of a program."""
        used: dict[fx.Node, list[Value]] = {node: [] for node in program.nodes()}
        calls: dict[fx.Node, Call] = {}
        for node, call, operands in read_calls(program.calls()):
            calls[node], used[node] = call, operands
        known: dict[tuple[str, ...], tuple[str, ...]] = {}
        constants: dict[fx.Node, tuple[str, ...]] = {}
        for node in calls:
            printed = print_constants(node)
            constants[node] = known.setdefault(printed, printed)
        return cls(used, calls, constants)

    @cached_property
    def sources(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Of every node, the positions of those that make its operands, and results."""
        at = {node: index for index, node in enumerate(self.used)}
        return tuple(
            [
                tuple([(at[node], result) for node, result in values])
                for values in self.used.values()
            ]
        )
