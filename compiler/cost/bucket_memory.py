"""What boxings allocate that are carried out together, moment by moment.

Before each collective they all call, what each of them puts in is copied into one
buffer. A sum is made in that buffer, of which the results are views; what is scattered
are views of one result too. What a gather brings lies by rank, so that each has to be
copied out of it (passes/send_together.py).

A sum that is carried out as an exchange is put in once for each rank, and what came
from all of them is added up where it is waited for, which is where the sum is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from partita.compiler.cost.boxing_memory import Link
from partita.compiler.cost.step import StepKind

Exchanges = Callable[[StepKind, int, str], bool]
"""Whether a collective of a payload along an axis is carried out as an exchange."""


@dataclass(frozen=True, slots=True)
class Chained:
    """A link of a boxing's chain, on an axis of ``size`` ranks.

    ``kind`` is that of the step if the link is its collective. ``is_packed`` says
    whether what it reads is in order, ``is_exchanged`` whether the collective is
    carried out as an exchange.
    """

    link: Link
    axis: str
    size: int
    kind: StepKind | None
    is_packed: bool
    is_exchanged: bool = False


@dataclass(frozen=True, slots=True)
class Moment:
    """Memory that is made: for which of the boxings, from what lies for which.

    ``is_message`` says whether a collective makes it, ``until_used`` whether what it is
    made from and its workspace are held until somebody uses it.
    """

    name: str
    num_bytes: int
    members: tuple[int, ...]
    workspace_bytes: int = 0
    is_message: bool = False
    until_used: bool = False


def moments_of(
    chains: Sequence[Sequence[Chained]], is_exchanged: Exchanges
) -> Iterator[Moment]:
    """Yield what the boxings of these chains allocate, side by side.

    Each moment reads what its members had, and is what they have then. What several
    send together is exchanged if ``is_exchanged`` says so of all of it.
    """
    if len(chains) == 1:
        for one in chains[0]:
            link = one.link
            if one.kind is StepKind.ALL_REDUCE and one.is_exchanged:
                yield Moment(f"repeat {one.axis}", one.size * link.num_bytes, (0,))
                yield _exchanged_sum(one, link.num_bytes, (0,))
                continue
            name, is_message = f"{link.name} {one.axis}", one.kind is not None
            yield Moment(name, link.num_bytes, (0,), link.workspace_bytes, is_message)
        return
    left = [list(chain) for chain in chains]
    while any(left):
        for member, chain in enumerate(left):
            while chain and chain[0].kind is None:
                own = chain.pop(0)
                link = own.link
                name = f"{link.name} {own.axis}"
                yield Moment(name, link.num_bytes, (member,), link.workspace_bytes)
        calls = {member: chain.pop(0) for member, chain in enumerate(left) if chain}
        if calls:
            yield from _collective(calls, is_exchanged)


def _exchanged_sum(call: Chained, whole: int, members: tuple[int, ...]) -> Moment:
    """Return what comes of what was repeated: that of all ranks, then their sum."""
    others, name = call.size - 1, f"{call.kind} {call.axis}"
    return Moment(name, whole, members, others * whole, True, until_used=True)


def _collective(calls: dict[int, Chained], is_exchanged: Exchanges) -> Iterator[Moment]:
    """Yield what one collective allocates that carries the members' parts."""
    members, first = tuple(calls), next(iter(calls.values()))
    axis, size = first.axis, first.size
    whole = sum(call.link.num_bytes for call in calls.values())
    workspace = sum(call.link.workspace_bytes for call in calls.values())
    if first.kind is StepKind.ALL_REDUCE:
        for member, call in calls.items():
            if not call.is_packed:
                yield Moment(f"pack {axis}", call.link.num_bytes, (member,))
        if is_exchanged(StepKind.ALL_REDUCE, whole, axis):
            yield Moment(f"bucket {axis}", size * whole, members)
            yield _exchanged_sum(first, whole, members)
        else:
            yield Moment(f"all_reduce {axis}", whole, members, workspace, True)
        return
    assert first.kind is not None
    is_gather = first.kind is StepKind.ALL_GATHER
    buffer = whole // size if is_gather else whole * size
    if is_exchanged(first.kind, buffer, axis):
        # A gather's buffer is free once it is repeated for each.
        workspace = abs(whole - buffer)
    elif workspace:
        workspace = max(whole, buffer)
    yield Moment(f"bucket {axis}", buffer, members)
    yield Moment(f"{first.kind} {axis}", whole, members, workspace, True)
    if is_gather:
        for member, call in calls.items():
            yield Moment(f"part {axis}", call.link.num_bytes, (member,))
