"""Run a step of every rank in this one process: microbatches, then what completes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.program import InputKind, OutputRole
from partita.compiler.ir.sbp import Broadcast, Placement, Sharding, Split
from partita.runtime.feeds import FeedKey, Feeds
from partita.runtime.microbatches import joined
from partita.runtime.virtual import run_all


@dataclass(frozen=True)
class Left:
    """One output of all ranks.

    Attributes:
        shards: by microbatch where ``join`` is a split, else for all of them; by rank.
        placement: that on the ranks.
        join: how what the microbatches made comes together.
    """

    shards: tuple[tuple[torch.Tensor, ...], ...]
    placement: Placement
    join: Sharding


def run_step(
    ranks: Sequence[LocalProgram],
    completing: Sequence[Sequence[LocalProgram]],
    feeds_of: Callable[[int], Sequence[Feeds]],
    device: torch.device | None = None,
) -> dict[OutputRole, Left]:
    """Return what leaves a step.

    Args:
        ranks: what every rank runs on each microbatch, by rank.
        completing: what brings each sum over microbatches to where it leaves, by rank.
        feeds_of: from the number of a microbatch to what the ranks are fed, by rank.
        device: as in ``run_all``.
    """
    first = ranks[0]
    numbers = range(first.in_time.count)
    runs = [run_all(ranks, feeds_of(number), device=device) for number in numbers]
    joins = first.in_time.joins or (Broadcast(),) * len(first.outputs)
    found: dict[OutputRole, Left] = {}
    for position, (role, join) in enumerate(zip(first.outputs, joins, strict=True)):
        placement = first.output_placements[position]
        assert placement is not None
        shards = [_tensors(outputs[position] for outputs in run) for run in runs]
        found[role] = left_behind(shards, placement, join)
    return complete_all(completing, found, device)


def left_behind(
    shards: Sequence[tuple[torch.Tensor, ...]], placement: Placement, join: Sharding
) -> Left:
    """Return the output of which the microbatches made ``shards``, each by rank."""
    if isinstance(join, Split):
        return Left(tuple(shards), placement, join)
    whole = tuple(joined(parts, join) for parts in zip(*shards, strict=True))
    return Left((whole,), placement, join)


def complete_all(
    completing: Sequence[Sequence[LocalProgram]],
    found: dict[OutputRole, Left],
    device: torch.device | None,
    stage: int = 0,
) -> dict[OutputRole, Left]:
    """Return ``found`` with the sums over microbatches where they leave.

    ``stage`` is that of the ranks.
    """
    for programs in completing:
        found = found | _completed(programs, found, device, stage)
    return found


def _completed(
    programs: Sequence[LocalProgram],
    found: dict[OutputRole, Left],
    device: torch.device | None,
    stage: int,
) -> dict[OutputRole, Left]:
    """Return the outputs that some sums, in ``found``, become."""
    first = programs[0]
    by_name = {str(role): left.shards for role, left in found.items()}
    feeds: list[dict[FeedKey, torch.Tensor]] = [{} for _ in programs]
    for role in first.inputs:
        if role.kind is InputKind.ACCUMULATED:
            (sums,) = by_name[role.name]
            for own, value in zip(feeds, sums, strict=True):
                own[role.kind, role.name] = value
    outputs = run_all(programs, feeds, [stage] * len(programs), device)
    placed = zip(first.outputs, first.output_placements, strict=True)
    done: dict[OutputRole, Left] = {}
    for position, (role, placement) in enumerate(placed):
        assert placement is not None
        done[role] = Left(
            (_tensors(own[position] for own in outputs),), placement, Broadcast()
        )
    return done


def _tensors(values: Iterable[torch.Tensor | None]) -> tuple[torch.Tensor, ...]:
    found = tuple(values)
    assert all(value is not None for value in found)
    return tuple(value for value in found if value is not None)
