"""A plan whose placements were edited, with the boxings that they want now.

Who edits a placement by hand leaves boxings as they were: one that is wanted now is
missing, another is wanted by nobody. What still serves stays as it is, with its steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from partita.compiler.hardware.profile import load_hardware
from partita.compiler.ir.again import again_key
from partita.compiler.ir.program import InputKind, OutputKind, Phase
from partita.compiler.ir.sbp import Placement
from partita.compiler.plan.beside import leaving_alone
from partita.compiler.plan.document import Boxing, Document, Parameter, Ref, boxing_key
from partita.compiler.plan.turns import END
from partita.compiler.plan.uses import (
    find_uses,
    mesh_of,
    parameter_uses,
    produced,
    storage_key,
    times_in_step,
    type_of,
)
from partita.compiler.search.boxings import lowered, why_entering, why_wanted

D = TypeVar("D", bound=Document)

_Way = tuple[Ref, Placement, bool]
"""A tensor, how it is wanted, and whether by a backward that makes it again."""


@dataclass(frozen=True)
class Mended:
    """Keys of the boxings that were ``added`` and ``dropped``."""

    added: tuple[str, ...]
    dropped: tuple[str, ...]

    def __str__(self) -> str:
        """Return both numbers, with the first keys.

        >>> str(Mended(("up/mm/0#0 -> (B,)",), ()))
        '1 boxing added (up/mm/0#0 -> (B,)), 0 dropped'
        """
        added, dropped = (_told(keys) for keys in (self.added, self.dropped))
        noun = "boxing" if len(self.added) == 1 else "boxings"
        told = f"{len(self.added)} {noun} added{added}"
        return f"{told}, {len(self.dropped)} dropped{dropped}"


def with_wanted_boxings(document: D) -> tuple[D, Mended]:
    """Return the plan with a boxing for whatever is wanted otherwise than made.

    What is neither a boxing nor the use of a parameter, which its users say, has to
    hold already. Buckets lose what is dropped, and so does what is made again for the
    backward, what starts ahead and what is waited for late.
    """
    known = {boxing.key: boxing for boxing in document.boxings}
    wanted = {boxing.key: boxing for boxing in _wanted(document, known)}
    added = tuple(key for key in wanted if key not in known)
    dropped = tuple(key for key in known if key not in wanted)
    order = [*(key for key in known if key in wanted), *added]
    buckets = ([key for key in keys if key in wanted] for keys in document.buckets)
    uses = parameter_uses(document)
    parameters = {
        name: _used(parameter, uses.get(name, ()))
        for name, parameter in document.parameters.items()
    }
    changed = replace(
        document,
        parameters=parameters,
        boxings=tuple(wanted[key] for key in order),
        buckets=tuple(tuple(keys) for keys in buckets if len(keys) > 1),
        recompute=tuple(key for key in document.recompute if key not in dropped),
    )
    return _with_turns_left(changed, document), Mended(added, dropped)


def _with_turns_left(changed: D, document: Document) -> D:
    """Return the plan without what it says of when changed messages pass."""
    if not (document.ahead or document.late):
        return changed
    old = {boxing.key: boxing for boxing in document.boxings}
    left = {boxing.key for boxing in changed.boxings if old.get(boxing.key) == boxing}
    for keys in document.buckets:
        if keys not in changed.buckets or not left.issuperset(keys):
            left.difference_update(keys)
    places = {*left, *document.nodes, END}
    ahead, late = (
        {key: at for key, at in turns.items() if key in left and at in places}
        for turns in (document.ahead, document.late)
    )
    leaving = leaving_alone(changed)
    members = {keys[0]: keys for keys in changed.buckets}
    late = {
        key: at for key, at in late.items() if leaving >= {*members.get(key, (key,))}
    }
    return replace(changed, ahead=ahead, late=late)


def _used(parameter: Parameter, wanted: Sequence[Placement]) -> Parameter:
    """Return the parameter with a use as its users take it."""
    held = parameter.placements
    if not wanted or held.use in wanted:
        return parameter
    return replace(parameter, placements=replace(held, use=wanted[0]))


def _wanted(document: Document, known: Mapping[str, Boxing]) -> Iterator[Boxing]:
    """Yield all boxings, as they were where they still serve."""
    for producer, node in document.nodes.items():
        if node.role is None or node.role.kind is not InputKind.PARAMETER:
            continue
        storage = produced(document, Ref(producer))
        updated = document.parameters[node.role.name].placements.optimizer
        if updated not in (None, storage):
            key, why = storage_key(producer, storage), why_entering(updated, storage)
            made = Boxing(key, producer, updated, storage, (), (producer,), why=why)
            yield _kept(document, known, made)
    again = set(document.recompute)
    users: dict[_Way, list[str]] = {}
    for use in find_uses(document):
        if produced(document, use.ref) != use.wanted:
            key = boxing_key(use.ref.key, use.ref.index, use.wanted)
            is_late = use.phase is not Phase.FORWARD and key in again
            users.setdefault((use.ref, use.wanted, is_late), []).append(use.consumer)
    for (ref, target, is_late), consumers in users.items():
        unique = tuple(dict.fromkeys(consumers))
        source, key = produced(document, ref), boxing_key(ref.key, ref.index, target)
        why = why_wanted(source, target, unique)
        key = again_key(key) if is_late else key
        made = Boxing(key, ref.key, source, target, (), unique, ref.index, why)
        yield _kept(document, known, made)


def _kept(document: Document, known: Mapping[str, Boxing], made: Boxing) -> Boxing:
    """Return the boxing as it was, if it still leads there, else with new steps."""
    old = known.get(made.key)
    is_same = old is not None and (old.source, old.target) == (made.source, made.target)
    if old is not None and is_same and set(old.consumers) == set(made.consumers):
        return old
    if old is not None and is_same:
        return replace(made, lowering=old.lowering)
    type_, mesh = type_of(document, made.ref), mesh_of(document, made.producer)
    times = times_in_step(made, document.microbatches)
    hardware = load_hardware(document.hardware)
    steps = lowered(type_, _stops(document, made), times, mesh, hardware)
    return replace(made, lowering=steps)


def _stops(document: Document, boxing: Boxing) -> tuple[Placement, ...]:
    """Return where a tensor is brought; a gradient where it is to be complete."""
    for user in boxing.consumers:
        kind, _, name = user.partition(":")
        parameter = document.parameters.get(name)
        if kind == OutputKind.GRADIENT and parameter is not None:
            complete = parameter.placements.gradient or boxing.target
            return boxing.source, complete, boxing.target
    return boxing.source, boxing.target


def _told(keys: Sequence[str]) -> str:
    more = ", ..." if len(keys) > 2 else ""
    return f" ({', '.join(keys[:2])}{more})" if keys else ""
