"""What the pins of a program leave its nodes to choose from, and at which price."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf

from torch import fx

from partita.compiler.errors import BadOptions, NoSolution
from partita.compiler.ir.program import (
    InputKind,
    InputRole,
    Program,
    Value,
    info,
    is_short_copy,
    operands,
    type_of,
)
from partita.compiler.ir.sbp import Placement
from partita.compiler.search.candidates import Candidates
from partita.compiler.search.pin_names import Named, NamedPin, find_pins, naming_any
from partita.compiler.search.pins import (
    Pin,
    check_axes,
    check_pin,
    has_dim_to_split,
)
from partita.compiler.search.problem import Choice
from partita.compiler.search.split_inputs import SplitInputs

_PINNABLE = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.INPUT)


def pins_of(program: Program, texts: Mapping[str, str]) -> dict[str, str]:
    """Return the pins that name something of ``program``, a stage of a whole.

    Raises:
        BadOptions: for a pin that does not parse.
    """
    return naming_any(texts, named_things(program))


def named_things(program: Program) -> list[Named]:
    """Return what pins may name of a program, in the order of its nodes."""
    roles = dict(program.placeholders())
    return [_named(node, roles.get(node)) for node in program.nodes()]


def pins_by_node(program: Program, texts: Mapping[str, str]) -> dict[fx.Node, Pin]:
    """Return the pin of every node that has one.

    Raises:
        BadOptions: as ``find_pins`` does.
    """
    roles = dict(program.placeholders())
    nodes = list(program.nodes()) if texts else []
    found = find_pins(texts, [_named(node, roles.get(node)) for node in nodes])
    return {nodes[at]: named.pin for at, named in found.items()}


class Pinned:
    """The pins of a program's nodes.

    Attributes:
        pins: by node.

    Raises:
        BadOptions: for a pin that is unknown or illegal.
    """

    def __init__(self, candidates: Candidates, texts: Mapping[str, str]) -> None:
        self._candidates = candidates
        self._program = candidates.program
        self._mesh = candidates.mesh
        self._read = candidates.read
        self._roles = dict(self._program.placeholders())
        self._charged: dict[tuple[int, float], Choice] = {}
        nodes = list(self._program.nodes()) if texts else []
        things = [_named(node, self._roles.get(node)) for node in nodes]
        found = {
            nodes[at]: self._checked(nodes[at], named)
            for at, named in find_pins(texts, things).items()
        }
        self._found = found
        self.pins: dict[fx.Node, Pin] = {n: named.pin for n, named in found.items()}
        self._split_inputs = SplitInputs(
            {
                node: pin.placement
                for node, pin in self.pins.items()
                if pin.placement is not None and pin.is_hard and self._is_input(node)
            }
        )

    def of_call(self, node: fx.Node, every: tuple[Choice, ...]) -> tuple[Choice, ...]:
        """Return the choices that are left to a call, those that break pins charged.

        Calls are to be asked for in the order of the program.

        Raises:
            NoSolution: where there are none.
        """
        if not self.pins:
            return every
        kept = self._charge((self._price_of_call(node, c), c) for c in every)
        if not kept:
            pinned = next(self._forcing(node))
            fact = info(node)
            raise NoSolution(
                f"pin {pinned.name!r}: {fact.key} ({node.target}, {fact.source}) has "
                "no signature with that placement"
            )
        _, factors = self._read[node]
        return self._split_inputs.restrict(node, factors, kept)

    def offered(
        self, node: fx.Node, placements: Sequence[Placement]
    ) -> list[Placement]:
        """Return in which placements something may enter, where these are offered."""
        pin = self.pins.get(node)
        if pin is None or pin.placement is None:
            return list(placements)
        return list(
            dict.fromkeys([pin.placement, *([] if pin.is_hard else placements)])
        )

    def of_placeholder(
        self, node: fx.Node, every: tuple[Choice, ...]
    ) -> tuple[Choice, ...]:
        """Return the choices left to what enters, those that break pins charged.

        Raises:
            NoSolution: where there are none.
        """
        named = self._found.get(node)
        if named is None:
            return every
        kept = self._charge((self._own_price(named.pin, c), c) for c in every)
        if not kept:
            raise NoSolution(
                f"pin {named.name!r}: there is no placement of {info(node).key} that "
                f"is {named.pin}"
            )
        return kept

    def _charge(self, priced: Iterable[tuple[float, Choice]]) -> tuple[Choice, ...]:
        return tuple(
            choice if price == 0.0 else self._with_price(choice, price)
            for price, choice in priced
            if price < inf
        )

    def _with_price(self, choice: Choice, price: float) -> Choice:
        """Return the one object of this choice at this price, as ``Fold`` asks for."""
        seconds, broken_s = choice.seconds + price, choice.broken_s + price
        return self._charged.setdefault(
            (id(choice), price), replace(choice, seconds=seconds, broken_s=broken_s)
        )

    def _own_price(self, pin: Pin, choice: Choice) -> float:
        made, held = choice.signature.results[0], choice.held
        if made is None:
            return 0.0
        is_so = pin.allows(made, self._mesh)
        if held is not None and pin.fixes_held:
            is_so &= held == pin.held(made)
        return 0.0 if is_so else _price(pin)

    def _price_of_call(self, node: fx.Node, choice: Choice) -> float:
        pin = self.pins.get(node)
        total = 0.0 if pin is None else self._own_price(pin, choice)
        for value, want in zip(operands(node), choice.signature.operands, strict=True):
            named = self._uses.get(value.node)
            if named is None or named.pin.use == want or is_short_copy(node):
                continue  # what uses a copy of it in 16 bits has that as asked
            if self._is_seen_through(node, named.pin) and not named.pin.is_hard:
                continue  # what uses the view pays
            total += _price(named.pin)
        return total

    def _forcing(self, node: fx.Node) -> Iterator[NamedPin]:
        """Yield the hard pins that bind a call."""
        bound = [self._found.get(node)]
        bound += [self._uses.get(value.node) for value in operands(node)]
        yield from (named for named in bound if named and named.pin.is_hard)

    @cached_property
    def _uses(self) -> dict[fx.Node, NamedPin]:
        """Pins of uses, by what is used: also the views of it, as the use makes them.

        Short copies are used in place of what they are of: cast before it is gathered,
        a parameter moves half of the bytes.
        """
        found = {n: named for n, named in self._found.items() if named.pin.use}
        for node in self._program.calls():
            sources = {value.node for value in operands(node)}
            if len(sources) == 1:
                (source,) = sources
                named = found.get(source)
                if named is None:
                    continue
                seen = self._seen_through(node, named)
                if seen is None and is_short_copy(node):
                    seen = named
                if seen is not None:
                    found.setdefault(node, seen)
        return found

    def _seen_through(self, node: fx.Node, named: NamedPin) -> NamedPin | None:
        """Return what the pin of a use asks of a view; ``None`` of anything else."""
        rule, _ = self._read[node]
        if not rule.free:
            return None
        views = {
            choice.signature.results[0]
            for choice in (priced.choice for priced in self._candidates.of_call(node))
            if set(choice.signature.operands) == {named.pin.use}
        }
        made = views.pop() if len(views) == 1 else None
        return made and replace(named, pin=replace(named.pin, use=made))

    def _is_seen_through(self, node: fx.Node, pin: Pin) -> bool:
        """Whether a view may break the pin of a use, for those that use it pay then."""
        rule, _ = self._read[node]
        return rule.free and pin.use is not None and pin.use.is_broadcast

    def _is_input(self, node: fx.Node) -> bool:
        role = self._roles.get(node)
        return role is not None and role.kind is InputKind.INPUT

    def _checked(self, node: fx.Node, named: NamedPin) -> NamedPin:
        """Return what a pin asks of a node that it names.

        Of a gradient and an optimizer it asks where there are such: one pin may be
        meant for the whole model, or for a model of which some is frozen later. Of
        the things in a module, or that a pattern names, a scope asks where there is a
        dim to split.
        """
        role, name, pin = self._roles.get(node), named.name, named.pin
        stored = role is not None and not self._is_input(node)
        thing = _named(node, role)
        is_exact = name in (thing.key, *thing.names)
        title = name if is_exact else thing.title
        check_axes(name, pin, self._mesh)
        if role is None or not self._is_trained(role):
            pin = pin.untrained
            is_parameter = role is not None and role.kind is InputKind.PARAMETER
            is_mistaken = pin.is_empty or not is_parameter
            if pin != named.pin and is_exact and is_mistaken:
                raise BadOptions(
                    f"pin {name!r} fixes a gradient or optimizer, but {title} is no "
                    "parameter that is trained"
                )
        type_ = type_of(Value(node, 0))
        if not (is_exact or has_dim_to_split(type_)):
            pin = pin.unscoped
        try:
            check_pin(title, pin, type_, self._mesh, stored)
        except BadOptions as error:
            if is_exact:
                raise
            raise BadOptions(
                f"pin {name!r} names {title!r} too: {error}; give that a pin of its "
                "own, or choose a closer pattern"
            ) from error
        return replace(named, pin=pin)

    def _is_trained(self, role: InputRole) -> bool:
        is_parameter = role.kind is InputKind.PARAMETER
        return is_parameter and role.name in self._program.trained


def _named(node: fx.Node, role: InputRole | None) -> Named:
    if role is None:
        return Named(info(node).key)
    names = (role.name, *role.aliases) if role.kind in _PINNABLE else ()
    return Named(info(node).key, names)


def _price(pin: Pin) -> float:
    return inf if pin.price_s is None else pin.price_s
