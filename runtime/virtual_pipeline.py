"""Run a step of a pipeline, every rank of every stage in this one process.

The actions of the schedule are run in the order of its rows, each row as far as it can
go; what stages hand each other is moved when it is sent and waits until it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from partita.compiler.errors import InvariantViolation
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.program import InputKind, OutputKind, OutputRole
from partita.compiler.ir.sbp import Broadcast
from partita.compiler.plan.stage_records import TransferKind
from partita.compiler.plan.wires import Wire
from partita.compiler.schedules.schedule import Action, Schedule
from partita.runtime.feeds import FeedKey, Feeds
from partita.runtime.transfer import move
from partita.runtime.virtual import run_all
from partita.runtime.virtual_step import Left, complete_all, left_behind

Shards = dict[FeedKey, torch.Tensor | int]

Ranks = tuple[torch.Tensor, ...]
"""A tensor's shards, by rank of its stage."""


@dataclass(frozen=True)
class VirtualStage:
    """What the ranks of a stage run.

    Attributes:
        parts: the forward and the backward, that in one part or two; each by rank.
        completing: what completes each sum over the microbatches, by rank.
    """

    parts: Sequence[Sequence[LocalProgram]]
    completing: Sequence[Sequence[LocalProgram]]


@dataclass
class VirtualPipeline:
    """All stages of a pipeline.

    Attributes:
        stages: what their ranks run.
        schedule: with its transfers.
        wires: what stages hand each other.
        feeds_of: from stage and microbatch to what its ranks are fed, by rank; it need
            not feed what other stages make.
        device: as in ``run_all``.
    """

    stages: Sequence[VirtualStage]
    schedule: Schedule
    wires: Sequence[Wire]
    feeds_of: Callable[[int, int], Sequence[Feeds]]
    device: torch.device | None = None
    held: dict[tuple[int, int], list[Shards]] = field(
        default_factory=dict[tuple[int, int], list[Shards]]
    )
    made: dict[tuple[int, OutputRole], dict[int, Ranks]] = field(
        default_factory=dict[tuple[int, OutputRole], dict[int, Ranks]]
    )
    done: list[tuple[int, Action]] = field(default_factory=list[tuple[int, Action]])

    def run(self) -> list[dict[OutputRole, Left]]:
        """Run a step; return what leaves each stage."""
        every = range(self.schedule.num_microbatches)
        for stage in range(len(self.stages)):
            for number in every:
                fed = self.feeds_of(stage, number)
                self.held[stage, number] = [dict(own) for own in fed]
        for wire in self.wires:
            if wire.kind is TransferKind.STATE:
                self._share(wire)
        self._run_rows()
        found = [self._left(stage) for stage in range(len(self.stages))]
        for wire in self.wires:
            if wire.kind is TransferKind.GRADIENT:
                self._bring_home(wire, found)
        return found

    def _run_rows(self) -> None:
        at = [0] * len(self.schedule.rows)
        ran = True
        while ran:
            ran = False
            for rank, row in enumerate(self.schedule.rows):
                while at[rank] < len(row) and self._can_run(row[at[rank]]):
                    self._run(row[at[rank]])
                    self.done.append((rank, row[at[rank]]))
                    at[rank] += 1
                    ran = True
        for rank, row in enumerate(self.schedule.rows):
            if at[rank] < len(row):
                raise InvariantViolation(
                    f"schedule {self.schedule.name!r}: rank {rank} waits for ever at "
                    f"{row[at[rank]]}: what it takes from other stages never comes"
                )

    def _can_run(self, action: Action) -> bool:
        """Whether what an action takes from other stages is there."""
        if not action.work.is_compute:
            return True
        stage, number = action.stage, action.microbatch
        assert number is not None
        wanted = set(self.stages[stage].parts[action.work.part][0].inputs)
        return all(
            (role.kind, role.name) in self.held[stage, number][0]
            for role in wanted
            if role.kind.is_received or role.kind is InputKind.SAVED
        )

    def _run(self, action: Action) -> None:
        stage, number = action.stage, action.microbatch
        if not action.work.is_compute:
            return
        assert number is not None
        programs = self.stages[stage].parts[action.work.part]
        held = self.held[stage, number]
        ran = run_all(programs, held, [stage] * len(programs), self.device)
        left = [
            dict(zip(program.outputs, outputs, strict=True))
            for program, outputs in zip(programs, ran, strict=True)
        ]
        for own, made in zip(held, left, strict=True):
            own.update(_saved(made))  # ranks of unlike shards save unlike tensors
        for role in left[0]:
            if role.kind is OutputKind.SAVED:
                continue
            shards = _tensors(made[role] for made in left)
            if role.kind.is_sent:
                self._send(stage, number, role, shards)
            else:
                self.made.setdefault((stage, role), {})[number] = shards
        if action.work.frees:
            held.clear()

    def _send(
        self,
        stage: int,
        number: int,
        role: OutputRole,
        shards: Ranks,
    ) -> None:
        for wire in self.wires:
            if wire.transfer.sender == stage and wire.leaves == role:
                for own, shard in zip(
                    self.held[wire.transfer.receiver, number],
                    _moved(wire, shards),
                    strict=True,
                ):
                    own[wire.enters] = shard

    def _share(self, wire: Wire) -> None:
        """Give a stage what it shares of the state of another."""
        name, sender = wire.transfer.name, wire.transfer.sender
        first = self.held[sender, 0]
        kinds = (InputKind.PARAMETER, InputKind.BUFFER)
        key = next((k, name) for k in kinds if (k, name) in first[0])
        shards = _moved(wire, _tensors(own[key] for own in first))
        for number in range(self.schedule.num_microbatches):
            receiving = self.held[wire.transfer.receiver, number]
            for own, shard in zip(receiving, shards, strict=True):
                own[wire.enters] = shard

    def _left(self, stage: int) -> dict[OutputRole, Left]:
        found: dict[OutputRole, Left] = {}
        for programs in self.stages[stage].parts:
            first = programs[0]
            joins = first.in_time.joins or (Broadcast(),) * len(first.outputs)
            for position, (role, join) in enumerate(
                zip(first.outputs, joins, strict=True)
            ):
                if (stage, role) in self.made:
                    placement = first.output_placements[position]
                    assert placement is not None
                    made = self.made[stage, role]
                    shards = [made[number] for number in sorted(made)]
                    found[role] = left_behind(shards, placement, join)
        return complete_all(self.stages[stage].completing, found, self.device, stage)

    def _bring_home(self, wire: Wire, found: list[dict[OutputRole, Left]]) -> None:
        """Add a stage's part of a gradient to what the parameter's home has of it."""
        (part,) = found[wire.transfer.sender].pop(wire.leaves).shards
        home = found[wire.transfer.receiver][wire.joins]
        (own,) = home.shards
        total = tuple(a + b for a, b in zip(own, _moved(wire, part), strict=True))
        found[wire.transfer.receiver][wire.joins] = replace(home, shards=(total,))


def _saved(made: Mapping[OutputRole, object]) -> Iterator[tuple[FeedKey, torch.Tensor]]:
    """Yield what a part of a step leaves to a later one, as that is fed it."""
    for role, value in made.items():
        if role.kind is OutputKind.SAVED:
            assert isinstance(value, torch.Tensor)
            yield (InputKind.SAVED, role.name), value


def _moved(wire: Wire, shards: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return what the receiving ranks have of a tensor, in their order."""
    by_rank = dict(zip(wire.source.ranks, shards, strict=True))
    moved = move(wire.type.shape, wire.source, wire.target, by_rank)
    return [moved[rank] for rank in wire.target.ranks]


def _tensors(values: Iterable[object]) -> Ranks:
    found = tuple(values)
    tensors = tuple(value for value in found if isinstance(value, torch.Tensor))
    assert len(tensors) == len(found)
    return tensors
