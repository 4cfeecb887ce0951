"""The plan of one program as the plan of another that differs in names alone.

What is alike stands in the same place: the n-th node, the n-th output. A plan says
names in many places, and builds some of them from others: the key of a boxing begins
with that of its producer, those of the parts of an op with that of the op.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from partita.compiler.capture.fingerprint import fingerprint
from partita.compiler.ir.program import NodeInfo, Program, info
from partita.compiler.plan.document import Boxing, Document, Node, Output, Ref, Role
from partita.compiler.plan.turns import END

D = TypeVar("D", bound=Document)

_JOINTS = ("~", "#", " -> ")
"""What stands between a name and what is added to it."""


def renamed(document: D, own: Program, other: Program) -> D:
    """Return the plan of ``own``, one stage, as that of ``other``."""
    return Renaming.of(own, other).document(document, fingerprint(other))


@dataclass
class Renaming:
    """The names of one program by those of another.

    Attributes:
        keys: of nodes, and of outputs as they print.
        names: of what enters and leaves.
        facts: of the other program's nodes, by their own keys.
        aliases: of what enters the other program, by its name.
        known: what was renamed.
    """

    keys: dict[str, str]
    names: dict[str, str]
    facts: dict[str, NodeInfo]
    aliases: dict[str, tuple[str, ...]]
    known: dict[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, own: Program, other: Program) -> Renaming:
        """Return the names of ``own`` by those of ``other``, which is alike."""
        pairs = [
            (info(a), info(b)) for a, b in zip(own.nodes(), other.nodes(), strict=True)
        ]
        inputs = list(zip(own.inputs, other.inputs, strict=True))
        outputs = list(zip(own.outputs, other.outputs, strict=True))
        keys = {a.key: b.key for a, b in pairs}
        keys |= {str(a): str(b) for a, b in outputs}
        return cls(
            keys,
            {a.name: b.name for a, b in (*inputs, *outputs)},
            {b.key: b for _, b in pairs},
            {b.name: b.aliases for _, b in inputs},
        )

    def document(self, document: D, fingerprint: str) -> D:
        """Return a plan of the one program with the names of the other."""
        stages = (replace(s, nodes=self._all(s.nodes)) for s in document.stages)
        rows = document.derived_rules
        return replace(
            document,
            model=replace(document.model, fingerprint=fingerprint),
            stages=tuple(stages),
            parameters={
                self.names[name]: replace(p, aliases=self.aliases[self.names[name]])
                for name, p in document.parameters.items()
            },
            buffers={
                self.names[name]: replace(b, aliases=self.aliases[self.names[name]])
                for name, b in document.buffers.items()
            },
            nodes=dict(self._node(*pair) for pair in document.nodes.items()),
            expanded={
                self.key(key): replace(whole, nodes=self._all(whole.nodes))
                for key, whole in document.expanded.items()
            },
            boxings=tuple(map(self._boxing, document.boxings)),
            recompute=self._all(document.recompute),
            fusion=tuple(map(self._all, document.fusion)),
            joined=tuple(map(self._all, document.joined)),
            buckets=tuple(map(self._all, document.buckets)),
            ahead=self._pairs(document.ahead),
            late=self._pairs(document.late),
            order=self._all(document.order),
            outputs=tuple(map(self._output, document.outputs)),
            reported=tuple(
                replace(row, nodes=self._all(row.nodes)) for row in document.reported
            ),
            derived_rules=tuple(
                replace(row, nodes=self._all(row.nodes)) for row in rows
            ),
        )

    def key(self, text: str) -> str:
        """Return a name, or one that begins with a name, as the other program's."""
        found = self.known.get(text)
        if found is None:
            found = self.known[text] = self._begins_with(text)
        return found

    def _begins_with(self, text: str) -> str:
        if text in self.keys:
            return self.keys[text]
        ends = {at for joint in _JOINTS for at in _places(text, joint)}
        for end in sorted(ends, reverse=True):
            if text[:end] in self.keys:
                return self.keys[text[:end]] + text[end:]
        raise KeyError(text)

    def _all(self, keys: Iterable[str]) -> tuple[str, ...]:
        return tuple(map(self.key, keys))

    def _pairs(self, turns: Mapping[str, str]) -> dict[str, str]:
        pairs = turns.items()
        return {self.key(key): at if at == END else self.key(at) for key, at in pairs}

    def _node(self, key: str, node: Node) -> tuple[str, Node]:
        key = self.key(key)
        fact = self.facts[self._of_program(key)]
        role = node.role
        return key, replace(
            node,
            operands=tuple(map(self._ref, node.operands)),
            stage=fact.stage,
            module=fact.module,
            source=fact.source,
            role=role and Role(role.kind, self.names[role.name]),
        )

    def _of_program(self, key: str) -> str:
        """Return the key of the program's node that a node of the plan comes from."""
        while key not in self.facts:
            key = key.rpartition("~")[0]
        return key

    def _ref(self, ref: Ref) -> Ref:
        return Ref(self.key(ref.key), ref.index)

    def _boxing(self, boxing: Boxing) -> Boxing:
        first = boxing.consumers[0]
        return replace(
            boxing,
            key=self.key(boxing.key),
            producer=self.key(boxing.producer),
            consumers=self._all(boxing.consumers),
            why=boxing.why.replace(f" by {first}", f" by {self.key(first)}"),
        )

    def _output(self, output: Output) -> Output:
        value = output.value and self._ref(output.value)
        return replace(output, name=self.names[output.name], value=value)


def _places(text: str, joint: str) -> Iterable[int]:
    at = text.find(joint)
    while at >= 0:
        yield at
        at = text.find(joint, at + 1)
