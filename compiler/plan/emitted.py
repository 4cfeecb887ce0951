"""The order in which a rank runs the calls and boxings of a plan.

Calls come in the order of the plan. A boxing stands before the first call that wants
it, one that only leaves the program right behind the call that makes its tensor, as
passes/insert_collectives.py puts them. A fused group is one unit, which stands where
its last call stood; what needs it moves behind it (passes/fuse_small_ops.py). So is a
bucket, where its last boxing stood (passes/send_together.py). Products that are one
stand where the first of them stood: all that they need is there (join_products.py).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from partita.compiler.ir.program import Phase
from partita.compiler.plan.document import Boxing, Document, Ref
from partita.compiler.plan.uses import boxings_by_use, completes

Item = str | Boxing
"""The key of a call, or a boxing."""

Unit = tuple[Item, ...]
"""What runs at once: an item, the calls of a fused group, the boxings of a bucket."""


def emitted_units(document: Document) -> list[Unit]:
    """Return the calls and boxings of ``document`` in the order in which they run.

    Where there are microbatches, each of them runs these.
    """
    units = units_alone(document)
    return in_buckets(document, units, lambda: places(units))


def units_alone(document: Document) -> list[Unit]:
    """Return the calls and boxings of ``document`` as they run without its buckets."""
    units: list[Unit] = [(item,) for item in _items(document)]
    if document.joined:
        units = list(_with_joined(units, document.joined))
    if document.fusion:
        units = _with_groups(document, units, document.fusion)
    return units


def in_buckets(
    document: Document, units: list[Unit], at: Callable[[], Mapping[str, int]]
) -> list[Unit]:
    """Return the units of ``units_alone``, those in one bucket joined.

    ``at`` gives their ``places``, which are asked for where there are buckets.
    """
    if not document.buckets:
        return units
    if are_late(document, at()):
        return _with_groups(document, units, document.buckets)
    return list(together(units, document.buckets))


def completing(document: Document) -> tuple[Boxing, ...]:
    """Return the boxings that follow all microbatches, in the order in which they run.

    They work on what has been added up; there are none where the batch is one.
    """
    return tuple(boxing for unit in completing_units(document) for boxing in unit)


def completing_units(document: Document) -> list[tuple[Boxing, ...]]:
    """Return the boxings of ``completing``; those of a bucket are one unit."""
    if document.microbatches == 1:
        return []
    return _together(document, [b for b in document.boxings if completes(b)])


def entering_units(document: Document) -> list[tuple[Boxing, ...]]:
    """Return what brings parameters from their optimizers; a bucket is one unit."""
    return _together(document, [b for b in document.boxings if b.enters])


def _together(
    document: Document, boxings: Sequence[Boxing]
) -> list[tuple[Boxing, ...]]:
    """Return the boxings one by one, those of a bucket where its last stands."""
    units = together([(boxing,) for boxing in boxings], document.buckets)
    return [tuple(b for b in unit if isinstance(b, Boxing)) for unit in units]


def inside_groups(document: Document) -> frozenset[Ref]:
    """Return the tensors that a fused group makes and nobody else uses."""
    if not document.fusion:
        return frozenset()
    group_of = {key: i for i, group in enumerate(document.fusion) for key in group}
    seen: set[Ref] = {boxing.ref for boxing in document.boxings}
    seen |= {output.value for output in document.outputs if output.value is not None}
    for key, node in document.nodes.items():
        here = group_of.get(key)
        seen |= {
            r for r in node.operands if here is None or group_of.get(r.key) != here
        }
    made = (Ref(k, i) for k in group_of for i in range(len(document.nodes[k].types)))
    return frozenset(ref for ref in made if ref not in seen)


def _items(document: Document) -> Iterator[Item]:
    boxings = boxings_by_use(document)
    boxed = {consumer for consumer, _, _ in boxings}
    made = {boxing.key for boxing in completing(document)}
    before: dict[str, list[Boxing]] = {}
    for key in document.order:
        if key not in boxed:
            continue
        node = document.nodes[key]
        before[key] = []
        for ref, wanted in zip(node.operands, node.signature.operands, strict=True):
            boxing = boxings.get((key, ref, wanted))
            if boxing is not None and boxing.key not in made:
                made.add(boxing.key)
                before[key].append(boxing)
    behind: dict[str, list[Boxing]] = {}
    for output in document.outputs:
        if output.value is not None and output.placement is not None:
            boxing = boxings.get((str(output), output.value, output.placement))
            if boxing is not None and boxing.key not in made:
                made.add(boxing.key)
                # Each right behind the result that it is of, so the next in between.
                behind.setdefault(boxing.producer, []).insert(0, boxing)
    for key in document.order:
        yield from before.get(key, ())
        if document.nodes[key].role is None:
            yield key
        if key in behind:
            yield from sorted(behind[key], key=lambda boxing: boxing.index)


def _with_joined(
    units: Sequence[Unit], groups: Sequence[tuple[str, ...]]
) -> Iterator[Unit]:
    """Yield the units; products that are one where the first of them stood."""
    group_of = {key: keys for keys in groups for key in keys}
    for unit in units:
        keys = group_of.get(key_of(unit[0]), ())
        if not keys:
            yield unit
        elif unit[0] == keys[0]:
            yield keys


def _with_groups(
    document: Document, apart: Sequence[Unit], groups: Sequence[Sequence[str]]
) -> list[Unit]:
    """Return the units in order, those that are in one group joined."""
    units = list(together(apart, groups))
    return [units[i] for i in earliest_first(_needs(document, units))]


def _needs(document: Document, units: Sequence[Unit]) -> Iterator[set[int]]:
    """Yield, by unit, the numbers of the units that it needs."""
    at, boxings = places(units), boxings_by_use(document)
    boxed = {consumer for consumer, _, _ in boxings}
    alike = {key for keys in document.joined for key in keys[1:]}  # need what the first
    for number, unit in enumerate(units):
        needed: set[int] = set()
        for item in unit:
            if isinstance(item, Boxing):
                needed.add(at.get(item.producer, number))
                continue
            if item in alike:
                continue
            node, is_boxed = document.nodes[item], item in boxed
            wanted = zip(node.operands, node.signature.operands, strict=True)
            for ref, placement in wanted:
                boxing = boxings.get((item, ref, placement)) if is_boxed else None
                key = ref.key if boxing is None else boxing.key
                needed.add(at.get(key, number))
        needed.discard(number)
        yield needed


def are_late(document: Document, at: Mapping[str, int]) -> bool:
    """Whether the boxings of a bucket would stand behind a call that wants one of them.

    Args:
        document: the plan whose buckets they are.
        at: the numbers of the units that calls and boxings are in without buckets.
    """
    known = {boxing.key: boxing for boxing in document.boxings}
    for keys in document.buckets:
        last = max([at.get(key, -1) for key in keys], default=-1)
        users = (user for key in keys if key in at for user in known[key].consumers)
        if any(at.get(user, last) < last for user in users):
            return True
    return False


def together(apart: Iterable[Unit], groups: Sequence[Sequence[str]]) -> Iterator[Unit]:
    """Yield the units; those of a group as one, where its last stood."""
    group_of = {key: i for i, keys in enumerate(groups) for key in keys}
    units = list(apart)
    own = [group_of.get(key_of(unit[0])) for unit in units]
    members: dict[int, list[Unit]] = {}
    for unit, group in zip(units, own, strict=True):
        if group is not None:
            members.setdefault(group, []).append(unit)
    for unit, group in zip(units, own, strict=True):
        if group is None:
            yield unit
        elif unit is members[group][-1]:
            yield tuple(item for part in members[group] for item in part)


def places(units: Iterable[Unit]) -> dict[str, int]:
    """Return the number of the unit that each call and boxing is in."""
    return {
        item if isinstance(item, str) else item.key: number
        for number, unit in enumerate(units)
        for item in unit
    }


def key_of(item: Item) -> str:
    """Return the key of a call or a boxing."""
    return item if isinstance(item, str) else item.key


def is_forward(document: Document, unit: Unit) -> bool:
    """Whether a unit runs in the forward; a boxing as who wants it first."""
    item = unit[0]
    if isinstance(item, Boxing):
        first = item.consumers[0]
        item = first if first in document.nodes else item.producer
    return document.nodes[item].phase is Phase.FORWARD


def earliest_first(needs: Iterable[Iterable[int]]) -> list[int]:
    """Return an order in which each comes behind those it needs, else as numbered.

    ``needs`` are asked for one by one. Whatever can run of those asked for has its
    place before the next is: so none that is ready has a smaller number.
    """
    order: list[int] = []
    is_done: list[bool] = []
    waits_for: dict[int, int] = {}  # how many, of those that had to be left for later
    waiting: dict[int, list[int]] = {}  # which of them wait for one
    for number, needed in enumerate(needs):
        missing = [i for i in needed if i >= number or not is_done[i]]
        is_done.append(False)
        for other in missing:
            waiting.setdefault(other, []).append(number)
        waits_for[number] = len(missing)
        ready = [] if missing else [number]
        while ready:
            i = heapq.heappop(ready)
            order.append(i)
            is_done[i] = True
            for user in waiting.pop(i, ()):
                waits_for[user] -= 1
                if waits_for[user] == 0:
                    heapq.heappush(ready, user)
    return order
