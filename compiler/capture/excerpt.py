"""Compute parts of a program on real values, to see what they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, fx

from partita.compiler.ir.program import InputKind, Program


@dataclass(frozen=True)
class Excerpt:
    """The calls that compute ``result`` from ``given`` and constants, in order."""

    result: fx.Node
    given: tuple[fx.Node, ...]
    constants: dict[fx.Node, Tensor]
    calls: tuple[fx.Node, ...]

    @classmethod
    def of(
        cls, program: Program, result: fx.Node, given: tuple[fx.Node, ...] = ()
    ) -> Excerpt | None:
        """Return the part of ``program``; ``None`` where more than that enters it."""
        constants = {
            node: program.constants[role.name]
            for node, role in program.placeholders()
            if role.kind is InputKind.CONSTANT
        }
        known: dict[fx.Node, None] = dict.fromkeys((*given, *constants))
        calls: dict[fx.Node, None] = {}
        open_nodes = [result]
        while open_nodes:
            node = open_nodes[-1]
            if node in calls or node in known:
                open_nodes.pop()
            elif node.op != "call_function":
                return None
            elif left := [
                n for n in node.all_input_nodes if n not in calls and n not in known
            ]:
                open_nodes += left
            else:
                calls[node] = None
        return cls(result, given, constants, tuple(calls))

    @property
    def key(self) -> str:
        """What parts have equal that compute the same."""
        names: dict[fx.Node, str] = {n: f"given{i}" for i, n in enumerate(self.given)}
        names |= {node: f"call{i}" for i, node in enumerate(self.calls)}

        def name(node: fx.Node) -> str:
            return names.get(node, node.name)

        written = [
            (str(node.target), fx.map_arg((node.args, node.kwargs), name))
            for node in self.calls
        ]
        return f"{written} -> {name(self.result)}"

    def __call__(self, *given: Tensor) -> Tensor:
        """Compute the result."""
        values: dict[fx.Node, Any] = {**self.constants}
        values.update(zip(self.given, given, strict=True))
        for node in self.calls:
            function = cast("Callable[..., Any]", node.target)
            args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = function(*args, **kwargs)
        return values[self.result]
