"""What the pins of a plan asked for, and whether it was done."""

from __future__ import annotations

from dataclasses import dataclass

from partita.compiler.errors import BadPlan
from partita.compiler.ir.program import InputKind
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.signature import Signature
from partita.compiler.plan.document import Document, Node
from partita.compiler.plan.units import format_seconds
from partita.compiler.plan.uses import Use, find_uses, is_short_copy
from partita.compiler.search.pin_names import Named, find_pins, naming_any
from partita.compiler.search.pins import Pin, has_dim_to_split

_PINNABLE = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.INPUT)


@dataclass(frozen=True, slots=True)
class Asked:
    """A pin of one thing: ``name`` is what it was given under, ``key`` the thing's."""

    key: str
    name: str
    pin: Pin
    is_followed: bool

    def __str__(self) -> str:
        text = str(self.pin).partition(" ~ ")[0].removeprefix("storage=")
        under = f" by {self.name!r}"
        if self.pin.price_s is None:
            return f"pinned to {text}{under}"
        price = format_seconds(self.pin.price_s)
        if self.is_followed:
            return f"pinned to {text}{under}, softly, and followed: else {price} a step"
        return f"not as pinned to {text}{under}, softly: at {price} that was dearer"


def find_asked(document: Document) -> dict[str, Asked]:
    """Return what pins ask for, by the key of the node.

    Raises:
        BadOptions: where pins contradict; those that name nothing ask for nothing.
    """
    wholes = {key: item.signature for key, item in document.expanded.items()}
    signatures = {key: node.signature for key, node in document.nodes.items()} | wholes
    things = _things(document)
    pins = naming_any(document.options.pins, things)
    if not pins:
        return {}
    uses: dict[str, list[Use]] = {}
    for use in find_uses(document):
        uses.setdefault(use.ref.key, []).append(use)
    found: dict[str, Asked] = {}
    for at, named in find_pins(pins, things).items():
        key = things[at].key
        pin = named.pin if _is_trained(document, key) else named.pin.untrained
        if pin.on and not _has_dim_to_split(document, key):
            pin = pin.unscoped
        if pin.is_empty:
            continue
        is_followed = _is_placed_so(document, key, signatures[key], pin) and (
            pin.use is None or _is_used_so(document, uses, key, pin.use)
        )
        found[key] = Asked(key, named.name, pin, is_followed)
    return found


def check_pins(document: Document) -> None:
    """Check that every pin names something of a plan that has some.

    Raises:
        BadPlan: for one that does not, or that no pin can be.
    """
    pins = document.options.pins
    if not pins:
        return
    own = own_pins(document)
    for name, text in pins.items():
        if name not in own:
            raise BadPlan(
                f"options.pins: found {name!r}: {text!r}, and no parameter, buffer, "
                "input, node or module of that name; want one that the plan has"
            )


def own_pins(document: Document) -> dict[str, str]:
    """Return the pins that name something of ``document``, a stage of a whole plan."""
    return naming_any(document.options.pins, _things(document))


def _things(document: Document) -> list[Named]:
    keys = [*document.nodes, *document.expanded]
    return [_named(document, key, document.nodes.get(key)) for key in keys]


def _named(document: Document, key: str, node: Node | None) -> Named:
    if node is None or node.role is None:
        return Named(key)
    if node.role.kind not in _PINNABLE:
        return Named(key)
    name = node.role.name
    held = document.parameters.get(name) or document.buffers.get(name)
    return Named(key, (name, *(held.aliases if held else ())))


def _is_trained(document: Document, key: str) -> bool:
    node = document.nodes.get(key)
    if node is None or node.role is None or node.role.kind is not InputKind.PARAMETER:
        return False
    return document.parameters[node.role.name].placements.optimizer is not None


def _has_dim_to_split(document: Document, key: str) -> bool:
    node = document.nodes.get(key)
    type_ = node.types[0] if node and node.types else None
    return type_ is None or has_dim_to_split(type_)


def _is_placed_so(document: Document, key: str, signature: Signature, pin: Pin) -> bool:
    made = signature.results[0] if signature.results else None
    whole = document.expanded.get(key)
    stage = document.nodes[whole.nodes[0] if whole else key].stage
    return made is None or pin.allows(made, document.stages[stage].mesh)


def _is_used_so(
    document: Document, uses: dict[str, list[Use]], key: str, asked: Placement
) -> bool:
    """Whether all that takes a tensor, or a view of it, does so as is asked."""
    for use in uses.get(key, ()):
        node = document.nodes.get(use.consumer)
        if node is None:
            continue  # it leaves the program
        is_view = node.seconds == 0.0 and len(node.operands) == 1
        if is_view and asked.is_broadcast:  # whoever uses the view may have it whole
            made: Placement | None = asked
        elif use.wanted != asked and not is_short_copy(document, node):
            return False
        else:
            made = node.signature.results[0] if is_view else None
        if is_short_copy(document, node):
            made = asked
        if made is not None and not _is_used_so(document, uses, use.consumer, made):
            return False
    return True
