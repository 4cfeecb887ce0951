"""Pins: placements that the user asks for, and what they say of one thing.

For a parameter a pin may fix each of its placements (``ParameterPlacements``), in any
order:

    ``"storage=(B); gradient=(S(0)); optimizer=(S(0)); use=(B)"``

A placement without a word before it is the storage. Where one of storage, gradient and
optimizer is fixed, a gradient and an optimizer that are not are as the storage; all
else is free.

A parameter that is not trained has neither, and what a pin says of them is then left
out; only one by its own name that says nothing else is refused, for it takes the
parameter for one that is trained.

A use holds through transposes and other views too, as they make it. An input's pin says
how it enters: dims that it splits stay split on their way (split_inputs.py), of what is
``B`` a use may still take a slice, which is free of communication. For a node a pin
fixes the placement of its (first) result.

In place of the storage, or of a node's placement, a scope may stand: ``"on tp"`` asks
that the thing is split along that axis of the mesh, by whichever of its dims; several
axes go with commas. A parameter that is to be used so too has a ``use`` beside.

A pin with a price is soft: ``"(S(0), B) ~ 1ms"`` may be broken, at that many seconds a
step for the thing that it names, and for each op that takes it in another placement
than the ``use`` that it asks for. The price decides, and is no part of what a plan is
predicted to take.

Which things a pin names, by name or by pattern, pin_names.py knows.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from partita.compiler.errors import BadOptions, BadPlacement
from partita.compiler.ir.layout import check_entries, check_placement
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement, Split
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.units import parse_seconds
from partita.compiler.search.held import Held

_WORD = re.compile(r"(storage|gradient|optimizer|use)\s*=")
_SCOPE = re.compile(r"on\s+(\w+(?:\s*,\s*\w+)*)")


@dataclass(frozen=True, slots=True)
class Pin:
    """What is asked for one thing: its own placement, and for a parameter the others.

    Attributes:
        placement: of a node's first result, or in which something enters.
        use: in which every op takes it.
        gradient: in which a parameter's gradient is complete.
        optimizer: in which a parameter is updated.
        on: axes along which it is split, in place of ``placement``.
        price_s: what breaking it costs, per step; ``None`` where it must hold.

    >>> pin = Pin(None, use=Placement.parse("B"), optimizer=Placement.parse("S(0)"))
    >>> str(pin), parse_pin("w", str(pin)) == pin
    ('optimizer=(S(0),); use=(B,)', True)
    >>> str(parse_pin("w", "on dp, tp ~ 2ms"))
    'on dp, tp ~ 0.002s'
    """

    placement: Placement | None
    use: Placement | None = None
    gradient: Placement | None = None
    optimizer: Placement | None = None
    on: tuple[str, ...] = ()
    price_s: float | None = None

    def __str__(self) -> str:
        entries = {
            "storage": self.placement,
            "gradient": self.gradient,
            "optimizer": self.optimizer,
            "use": self.use,
        }
        parts = [f"on {', '.join(self.on)}"] if self.on else []
        parts += [f"{word}={p}" for word, p in entries.items() if p is not None]
        price = "" if self.price_s is None else f" ~ {self.price_s!r}s"
        return "; ".join(parts) + price

    @property
    def is_hard(self) -> bool:
        """Whether it must hold."""
        return self.price_s is None

    def map(self, change: Callable[[Placement], Placement]) -> Pin:
        """Return the pin with every placement that it fixes changed."""
        own = (self.placement, self.use, self.gradient, self.optimizer)
        placement, use, gradient, optimizer = (p and change(p) for p in own)
        return replace(
            self,
            placement=placement,
            use=use,
            gradient=gradient,
            optimizer=optimizer,
        )

    @property
    def fixes_held(self) -> bool:
        """Whether it says how a trained parameter is held: by its storage, too."""
        return bool(self.placement or self.gradient or self.optimizer)

    @property
    def untrained(self) -> Pin:
        """What is left of it for what has neither a gradient nor an optimizer."""
        return replace(self, gradient=None, optimizer=None)

    def fits(self, mesh: Mesh) -> bool:
        """Whether a mesh has the axes that it names, or as many as it has entries."""
        fixed = (self.placement, self.use, self.gradient, self.optimizer)
        are_as_many = all(
            len(placement.shardings) == len(mesh.names)
            for placement in fixed
            if placement is not None
        )
        return are_as_many and {*self.on} <= {*mesh.names}

    @property
    def unscoped(self) -> Pin:
        """What is left of it for what it names among others and has no dim to split."""
        return replace(self, on=())

    @property
    def is_empty(self) -> bool:
        """Whether it asks for nothing."""
        return not (self.placement or self.use or self.on or self.fixes_held)

    def held(self, storage: Placement) -> Held:
        """Return how a trained parameter is held that is stored as ``storage``."""
        return Held(self.gradient or storage, self.optimizer or storage)

    def allows(self, placement: Placement, mesh: Mesh) -> bool:
        """Whether the thing itself, apart from its uses, is placed as asked.

        An axis of one rank has nothing to split, and nothing is asked of it.
        """
        if self.placement is not None:
            return placement == self.placement
        axes = [mesh.axis(name) for name in self.on]
        return all(
            mesh.sizes[axis] == 1 or isinstance(placement.shardings[axis], Split)
            for axis in axes
        )


def parse_pin(name: str, text: object) -> Pin:
    """Read one pin: text, or a placement, which prints as its text.

    Raises:
        BadOptions: naming the pin when it does not parse.
    """
    body, tilde, price = str(text).rpartition("~")
    if not tilde:
        body, price = price, ""
    bare, *rest = _WORD.split(body)
    words, texts = rest[::2], rest[1::2]
    scope = _SCOPE.fullmatch(bare.strip(" ;"))
    if (bare.strip(" ;") and scope is None) or not (words or scope):
        words, texts = ["storage", *words], [bare, *texts]
    fixed = [*words, "storage"] if scope else words
    if len(set(fixed)) != len(fixed):
        twice = next(word for word in fixed if fixed.count(word) > 1)
        raise BadOptions(f"pin {name!r}: fixes the {twice} twice in {str(text)!r}")
    try:
        found = {
            word: Placement.parse(own.strip().removesuffix(";"))
            for word, own in zip(words, texts, strict=True)
        }
        price_s = parse_seconds(price) if tilde else None
    except (BadPlacement, BadOptions) as error:
        raise BadOptions(f"pin {name!r}: {error}") from error
    on = tuple(axis.strip() for axis in scope[1].split(",")) if scope else ()
    if len(set(on)) != len(on):
        twice = next(axis for axis in on if on.count(axis) > 1)
        raise BadOptions(f"pin {name!r}: names axis {twice!r} twice in {str(text)!r}")
    fixed = (found.get(word) for word in ("storage", "use", "gradient", "optimizer"))
    return Pin(*fixed, on=on, price_s=price_s)


def has_dim_to_split(type_: TensorType) -> bool:
    """Whether a scope (``on tp``) may ask for a split of such a tensor."""
    return any(size > 1 for size in type_.shape)


def check_axes(name: str, pin: Pin, mesh: Mesh) -> None:
    """Check that a mesh has the axes that a pin names, and as many as it has entries.

    Raises:
        BadOptions: naming the pin, and the axis or what has too few or many entries.
    """
    for axis in pin.on:
        if axis not in mesh.names:
            raise BadOptions(f"pin {name!r}: mesh {mesh} has no axis {axis!r}")
    for placement in (pin.placement, pin.use, pin.gradient, pin.optimizer):
        if placement is not None:
            try:
                check_entries(placement, mesh)
            except BadPlacement as error:
                raise BadOptions(f"pin {name!r}: {error}") from error


def check_pin(
    name: str, pin: Pin, type_: TensorType, mesh: Mesh, stored: bool = False
) -> None:
    """Check that a pin is legal for the tensor it names.

    Args:
        name: what the pin names.
        pin: what it fixes.
        type_: the tensor's logical type.
        mesh: the ranks.
        stored: whether it is kept from step to step (a parameter, a buffer).

    Raises:
        BadOptions: naming the pin, the shape and what is wrong.
    """
    check_axes(name, pin, mesh)
    if pin.on and not has_dim_to_split(type_):
        raise BadOptions(
            f"pin {name!r} is illegal for {type_}: it has no dim to split on "
            f"{', '.join(pin.on)}"
        )
    for placement in (pin.placement, pin.gradient, pin.optimizer):
        if stored and placement is not None and placement.has_partial:
            raise BadOptions(
                f"pin {name!r} is illegal: {placement} cannot be stored; want S or B "
                f"per axis (a partial use is 'use={placement}')"
            )
    for placement in (pin.placement, pin.use, pin.gradient, pin.optimizer):
        if placement is None:
            continue
        try:
            check_placement(type_.shape, placement, mesh)
        except BadPlacement as error:
            raise BadOptions(f"pin {name!r} is illegal for {type_}: {error}") from error
