"""Which things a pin names: by a name, by a pattern over names, by a module's path.

``*``, ``?`` and ``[...]`` stand for parts of a name, as in a shell; ``*`` for dots and
slashes too. A pattern is read by its form, as those of ``recompute`` are (again.py):

* ``layers.*.mlp.*``: parameters, buffers and inputs, by any of their names. The path
  of a module (``layers.0.mlp``), or a pattern of it, names all that it holds
* ``parameter:*``, with a colon: what enters, of one kind
* ``*.mlp.act/*``, with a slash: nodes, by their keys; those of the backward only with
  a pattern that has the ``~`` of their keys

Of several pins that name one thing the closest counts, and it alone: an exact name
before a pattern, then what spells out more letters (``h.*.mlp.*`` before ``h.*``), then
what has fewer stars.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import translate
from functools import cached_property

from partita.compiler.errors import BadOptions
from partita.compiler.plan.units import pattern
from partita.compiler.search.pins import Pin, parse_pin

_WILDCARD = re.compile(r"\[[^\]]+\]|[*?]")


@dataclass(frozen=True, slots=True)
class Named:
    """Something that pins may name.

    ``names`` are those of what enters the program, none for a call; ``key`` is that of
    its node.
    """

    key: str
    names: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What messages call it."""
        return self.names[0] if self.names else self.key


@dataclass(frozen=True)
class NamedPin:
    """A pin and the name or pattern under which it was given."""

    name: str
    pin: Pin

    @property
    def is_exact(self) -> bool:
        """Whether it has no wildcards."""
        return _WILDCARD.search(self.name) is None

    def closeness(self, thing: Named) -> tuple[int, int] | None:
        """Return how closely it names a thing as a pattern, the smallest the closest.

        ``None`` where it does not.
        """
        names = self.spoken_of(thing)
        for own in self._patterns if thing.names else self._patterns[:1]:
            if any(own.regex.match(name) for name in names):
                return own.closeness
        return None

    def spoken_of(self, thing: Named) -> tuple[str, ...]:
        """Return the names of a thing that are of this pattern's form."""
        if "/" in self.name:
            is_asked = "~" in self.name or "~" not in thing.key
            return () if thing.names or not is_asked else (thing.key,)
        return (thing.key,) if thing.names and ":" in self.name else thing.names

    @cached_property
    def _patterns(self) -> tuple[_Pattern, _Pattern]:
        """The name itself, and what is inside of a module of this name."""
        return _Pattern.of(self.name), _Pattern.of(f"{self.name}.*")


@dataclass(frozen=True, slots=True)
class _Pattern:
    regex: re.Pattern[str]
    closeness: tuple[int, int]

    @classmethod
    def of(cls, text: str) -> _Pattern:
        letters = len(_WILDCARD.sub("", text))
        return cls(re.compile(translate(text)), (-letters, text.count("*")))


def find_pins(pins: Mapping[str, str], things: Sequence[Named]) -> dict[int, NamedPin]:
    """Return the pin of everything that has one, by its position among the things.

    Raises:
        BadOptions: for a pin that does not parse or names nothing, and for pins that
            name one thing equally closely and differ.
    """
    parsed = {
        name: NamedPin(name, parse_pin(name, text)) for name, text in pins.items()
    }
    wild = [pin for pin in parsed.values() if not pin.is_exact]
    of_nodes = [pin for pin in wild if "/" in pin.name]
    of_entering = [pin for pin in wild if "/" not in pin.name]
    used: set[str] = set()
    found: dict[int, NamedPin] = {}
    for position, thing in enumerate(things):
        exact = [parsed[n] for n in (*thing.names, thing.key) if n in parsed]
        patterns = of_nodes
        if thing.names:
            around = [parsed[n] for n in modules_around(thing) if n in parsed]
            patterns = [*of_entering, *around]
        matching = [
            (closeness, pin)
            for pin in patterns
            if (closeness := pin.closeness(thing)) is not None
        ]
        used |= {pin.name for pin in (*exact, *(pin for _, pin in matching))}
        least = min((closeness for closeness, _ in matching), default=None)
        closest = exact or [pin for closeness, pin in matching if closeness == least]
        for other in closest[1:]:
            if other.pin != closest[0].pin:
                raise BadOptions(_differ(closest[0].name, other.name, thing))
        if closest:
            found[position] = closest[0]
    for pin in parsed.values():
        if pin.name not in used:
            raise BadOptions(_names_nothing(pin, things))
    return found


def _differ(first: str, second: str, thing: Named) -> str:
    if {first, second} <= {*thing.names, thing.key}:
        return (
            f"pins {first!r} and {second!r} differ and are both of {thing.title!r}, "
            "which is held once; leave one of them out"
        )
    return (
        f"pins {first!r} and {second!r} differ and name {thing.title!r} equally "
        "closely; pin it by its own name"
    )


def naming_any(pins: Mapping[str, str], things: Sequence[Named]) -> dict[str, str]:
    """Return the pins that name one of ``things``: of a stage, say.

    Raises:
        BadOptions: for a pin that does not parse.
    """
    known = {name for thing in things for name in (*thing.names, thing.key)}
    known |= {name for thing in things for name in modules_around(thing)}
    parsed = [NamedPin(name, parse_pin(name, text)) for name, text in pins.items()]
    return {
        pin.name: pins[pin.name]
        for pin in parsed
        if pin.name in known
        or (
            not pin.is_exact
            and any(pin.closeness(thing) is not None for thing in things)
        )
    }


def modules_around(thing: Named) -> set[str]:
    """Return what names a thing that enters as the path of a module would.

    >>> sorted(modules_around(Named("parameter:h.0.w", ("h.0.w",))))
    ['h', 'h.0', 'parameter:h', 'parameter:h.0']
    """
    names = (*thing.names, thing.key) if thing.names else ()
    return {
        name[:at] for name in names for at, letter in enumerate(name) if letter == "."
    }


def _names_nothing(pin: NamedPin, things: Sequence[Named]) -> str:
    def close_to(names: Iterator[str]) -> list[str]:
        return get_close_matches(pin.name, sorted(set(names)), n=3)

    spoken = (name for thing in things for name in pin.spoken_of(thing))
    if pin.is_exact:
        close = close_to(n for thing in things for n in (*thing.names, thing.key))
    else:
        close = close_to(pattern(name) for name in spoken)
    hint = f"; did you mean {', '.join(map(repr, close))}?" if close else ""
    return f"pin {pin.name!r} names no parameter, buffer, input or node{hint}"
