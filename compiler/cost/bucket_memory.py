"""What boxings allocate that are carried out together, moment by moment.

Before each collective they all call, what each of them puts in is copied into one
buffer. A sum is made in that buffer, of which the results are views; what is scattered
are views of one result too. What a gather brings lies by rank, so that each has to be
copied out of it (passes/send_together.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from partita.compiler.cost.boxing_memory import Link
from partita.compiler.cost.step import StepKind


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

    ``is_message`` says whether a collective makes it.
    """

    name: str
    num_bytes: int
    members: tuple[int, ...]
    workspace_bytes: int = 0
    is_message: bool = False


def moments_of(chains: Sequence[Sequence[Chained]]) -> Iterator[Moment]:
    """Yield what the boxings of these chains allocate, side by side.

    Each moment reads what its members had, and is what they have then.
    """
    if len(chains) == 1:
        for one in chains[0]:
            link = one.link
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
            yield from _collective(calls)


def _collective(calls: dict[int, Chained]) -> Iterator[Moment]:
    """Yield what one collective allocates that carries the members' parts."""
    members, first = tuple(calls), next(iter(calls.values()))
    axis, size = first.axis, first.size
    whole = sum(call.link.num_bytes for call in calls.values())
    workspace = sum(call.link.workspace_bytes for call in calls.values())
    if first.kind is StepKind.ALL_REDUCE:
        for member, call in calls.items():
            if not call.is_packed:
                yield Moment(f"pack {axis}", call.link.num_bytes, (member,))
        yield Moment(f"all_reduce {axis}", whole, members, workspace, True)
        return
    is_gather = first.kind is StepKind.ALL_GATHER
    buffer = whole // size if is_gather else whole * size
    if is_gather and first.is_exchanged:
        workspace = whole - buffer  # which is free once it is repeated for each
    yield Moment(f"bucket {axis}", buffer, members)
    yield Moment(f"{first.kind} {axis}", whole, members, workspace, True)
    if is_gather:
        for member, call in calls.items():
            yield Moment(f"part {axis}", call.link.num_bytes, (member,))
