"""The decisions of another plan as pins: for a model that was edited, a mesh resized.

Things are found again by name or stable key; ``counterparts.py`` gave them those that
the program has. A pin is soft where it can be, so that what no longer fits, or not next
to what is new, is searched again. On a mesh with axes that the old one lacks, only
along which axes a thing was split is asked for. Of what was added, the old plan's own
pins are asked for: a pattern over all layers names new ones too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from partita.compiler.errors import BadOptions
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import (
    InputKind,
    InputRole,
    Program,
    Value,
    info,
    type_of,
)
from partita.compiler.ir.sbp import Placement, Split
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.document import Document, Parameter
from partita.compiler.search.pin_names import find_pins, naming_any
from partita.compiler.search.pinned import named_things
from partita.compiler.search.pins import check_pin, parse_pin


@dataclass(frozen=True)
class Carried:
    """What to ask for: ``pins`` of single things.

    ``own`` are those that a person gave, now or for the old plan, as far as they name
    something that is not given another: the new plan says them again, for a plan that
    is made like it.
    """

    pins: Mapping[str, str]
    own: Mapping[str, str]


def carried_pins(
    old: Document, program: Program, mesh: Mesh, given: Mapping[str, str]
) -> Carried:
    """Return pins that ask for what ``old`` decided, and those that are ``given``.

    What a given pin names is left to it.

    Args:
        old: the plan whose decisions are carried over.
        program: what is to be planned.
        mesh: its ranks, or those of one stage.
        given: the user's own pins.

    Raises:
        BadOptions: for a given pin that does not parse or names nothing.
    """
    things = named_things(program)
    taken = find_pins(given, things) if given else {}
    roles = dict(program.placeholders())
    carrier = _Carrier(old, mesh)
    own = naming_any(carrier.own_pins, things)
    asked = find_pins(own, things) if own else {}
    pins: dict[str, str] = {}
    for position, (thing, node) in enumerate(zip(things, program.nodes(), strict=True)):
        kind = info(node).types[0]
        if position in taken or kind is None:
            continue
        role = roles.get(node)
        text = carrier.of_call(thing.key) if role is None else carrier.of(role)
        stored, type_ = role is not None and role.kind.is_state, type_of(Value(node, 0))
        if text is None and position in asked:
            named = asked[position]
            is_trained = role is not None and role.name in program.trained
            text = own[named.name] if is_trained else str(named.pin.untrained)
        if text and _is_legal(text, type_, mesh, stored):
            pins[thing.title] = text
    left = {named.name for position, named in asked.items() if position not in taken}
    kept = {name: text for name, text in own.items() if name in left}
    return Carried(pins | dict(given), kept | dict(given))


def _is_legal(text: str, type_: TensorType, mesh: Mesh, stored: bool) -> bool:
    try:
        check_pin("", parse_pin("", text), type_, mesh, stored)
    except BadOptions:
        return False
    return True


@dataclass(frozen=True)
class _Carrier:
    """Writes what a plan decided as pins for another mesh."""

    old: Document
    mesh: Mesh

    @property
    def own_pins(self) -> dict[str, str]:
        """The old plan's pins, soft where they can be; none on a mesh of other axes."""
        if any(stage.mesh.names != self.mesh.names for stage in self.old.stages):
            return {}
        return {
            name: str(replace(pin, price_s=pin.price_s or self._price_s))
            if pin.gradient is pin.optimizer is None
            else text
            for name, text in self.old.options.pins.items()
            for pin in (parse_pin(name, text),)
        }

    def of(self, role: InputRole) -> str | None:
        """Return the pin of something that enters."""
        match role.kind:
            case InputKind.PARAMETER:
                parameters = self._parameters
                found = (
                    parameters[n] for n in (role.name, *role.aliases) if n in parameters
                )
                parameter = next(found, None)
                return None if parameter is None else self._of_parameter(parameter)
            case InputKind.BUFFER | InputKind.INPUT:
                entry = self._entering.get((role.kind, role.name))
                return None if entry is None else self._soft(*entry)
            case _:
                return None

    def of_call(self, key: str) -> str | None:
        """Return the pin of a call's first result."""
        found = self._calls.get(key)
        return None if found is None else self._soft(*found)

    @cached_property
    def _parameters(self) -> dict[str, Parameter]:
        return {
            known: parameter
            for name, parameter in self.old.parameters.items()
            for known in (name, *parameter.aliases)
        }

    @cached_property
    def _entering(self) -> dict[tuple[InputKind, str], tuple[Placement, int]]:
        return {
            (node.role.kind, node.role.name): (placement, node.stage)
            for node in self.old.nodes.values()
            if node.role is not None
            for placement in node.signature.results[:1]
            if placement is not None
        }

    @cached_property
    def _calls(self) -> dict[str, tuple[Placement, int]]:
        nodes = self.old.nodes
        signatures = {k: (n.signature, n.stage) for k, n in nodes.items() if not n.role}
        signatures |= {
            key: (whole.signature, nodes[whole.nodes[0]].stage)
            for key, whole in self.old.expanded.items()
        }
        return {
            key: (placement, stage)
            for key, (signature, stage) in signatures.items()
            for placement in signature.results[:1]
            if placement is not None
        }

    def _of_parameter(self, parameter: Parameter) -> str | None:
        """Return the pin of a parameter; one that is updated otherwise holds hard."""
        own, stage = parameter.placements, min(parameter.homes, default=0)
        if own.optimizer in (None, own.storage) and own.gradient in (None, own.storage):
            return self._soft(own.storage, stage)
        words = {
            "storage": own.storage,
            "gradient": own.gradient,
            "optimizer": own.optimizer,
        }
        parts: list[str] = []
        for word, placement in words.items():
            mapped = None if placement is None else self._mapped(placement, stage)
            if mapped is None:
                return self._soft(own.storage, stage)
            parts.append(f"{word}={mapped}")
        return "; ".join(parts)

    def _soft(self, placement: Placement, stage: int) -> str | None:
        mapped = self._mapped(placement, stage)
        text = self._scope(placement, stage) if mapped is None else str(mapped)
        return None if text is None else f"{text} ~ {self._price_s!r}s"

    @property
    def _price_s(self) -> float:
        return max(self.old.predicted.seconds, 1e-6)

    def _mapped(self, placement: Placement, stage: int) -> Placement | None:
        """Return a placement by the names of axes, ``None`` where some are new."""
        names = self.old.stages[stage].mesh.names
        if not set(self.mesh.names) <= set(names):
            return None
        shardings = dict(zip(names, placement.shardings, strict=True))
        return Placement(tuple(shardings[name] for name in self.mesh.names))

    def _scope(self, placement: Placement, stage: int) -> str | None:
        names = self.old.stages[stage].mesh.names
        split = [
            name
            for name, sharding in zip(names, placement.shardings, strict=True)
            if isinstance(sharding, Split) and name in self.mesh.names
        ]
        return f"on {', '.join(split)}" if split else None
