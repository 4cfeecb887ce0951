"""Run the steps of a program whose stages form a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import torch
import torch.distributed as dist

from partita.compiler.plan.stage_records import TransferKind
from partita.compiler.schedules.schedule import Action, Schedule, Work
from partita.runtime.agree import everyone_tells
from partita.runtime.asynchronous import (
    AsynchronousRun,
    Streamed,
    asynchronous_schedule,
)
from partita.runtime.executor import Made, Outputs
from partita.runtime.feeds import FeedsOf
from partita.runtime.leaving import WholeOutputs, made_whole
from partita.runtime.link import Link
from partita.runtime.pipeline_step import PipelineStep, Row
from partita.runtime.released import released_at
from partita.runtime.share import Share
from partita.runtime.stage_parts import StageParts, ready
from partita.runtime.transfer import as_bytes
from partita.runtime.way import Way

_IN_FORWARD = (Work.RECEIVE_FORWARD, Work.FORWARD, Work.SEND_FORWARD)


class Pipeline:
    """The stages of a pipeline that this rank has a share of."""

    def __init__(self, shares: Mapping[int, Share], way: Way) -> None:
        self.way = way
        first, *_ = shares
        self._device = shares[first].groups.device
        # What goes forward and what goes backward have a group each: over NCCL two
        # ranks' messages go in one order in a group, and the two have none in common.
        self._groups = [cast(dist.ProcessGroup, dist.new_group()) for _ in range(2)]
        self._stages = ready({n: StageParts.of(share) for n, share in shares.items()})
        self._forward: dict[int, StageParts] | None = None
        self._row = self._row_of(way.schedule, way.schedule.closing)
        self.actions: tuple[Action, ...] = ()

    def _row_of(
        self, schedule: Schedule, closing: frozenset[Action] = frozenset()
    ) -> Row:
        """Return what this rank does by a schedule of the stages.

        ``closing`` are the actions with which gradients are whole and to be reduced.
        """
        first, *_ = self._stages
        rank = schedule.rank_of[first]
        ahead = (TransferKind.FORWARD, TransferKind.STATE)
        return Row(
            schedule.name,
            schedule.num_microbatches,
            schedule.rows[rank],
            closing,
            released_at(schedule, rank, self.way.wires),
            self._stages,
            [
                Link(n, wire, schedule, self._groups[wire.kind not in ahead])
                for n, wire in enumerate(self.way.wires)
            ],
            self._device,
        )

    @property
    def has_loss(self) -> bool:
        """Whether there is something to differentiate."""
        return self.way.loss is not None

    def step(self, feeds_of: FeedsOf, taken: set[int]) -> Mapping[int, Made]:
        """Run a step; return what each stage of this rank makes."""
        del taken  # what leaves are sums, or made here: nobody else has them
        stages = self._row.stages
        run = PipelineStep(
            self._row, feeds_of, {n: stage.zeros() for n, stage in stages.items()}
        )
        run.go()
        self.actions = tuple(run.done)
        return {stage: made.items() for stage, made in run.ended().items()}

    def stream(
        self, feeds_of: FeedsOf, num_batches: int, update: Callable[[], None]
    ) -> Streamed:
        """Run so many batches one behind another; see asynchronous.py."""
        schedule = asynchronous_schedule(self.way, num_batches)
        num_parts = self.way.schedule.num_microbatches
        run = AsynchronousRun(
            self._row_of(schedule), feeds_of, {}, num_parts=num_parts, update=update
        )
        run.go()
        self.actions = tuple(run.done)
        assert self.way.loss is not None
        dtype = self.way.loss.dtype
        losses = torch.empty(num_batches, dtype=dtype, device=self._device)
        for batch, loss in run.losses.items():
            losses[batch] = loss
        dist.broadcast(losses, self.way.loss_rank)
        return Streamed(losses, run.most_versions)

    def forward(self, feeds_of: FeedsOf) -> dict[int, list[Outputs]]:
        """Run the forward alone; return by stage what each microbatch makes."""
        actions = tuple(a for a in self._row.actions if a.work in _IN_FORWARD)
        if self._forward is None:
            stages = {n: s.without_backward() for n, s in self._row.stages.items()}
            self._forward = ready(stages)
        row = replace(self._row, actions=actions, released={}, stages=self._forward)
        run = PipelineStep(row, feeds_of, {})
        run.go()
        numbers = range(self._row.num_microbatches)
        return {
            stage: [run.left[stage, number] for number in numbers]
            for stage in self._row.stages
        }

    def loss(self, found: torch.Tensor | None) -> torch.Tensor:
        """Return the loss to every rank."""
        assert self.way.loss is not None
        if found is None:
            found = torch.empty((), dtype=self.way.loss.dtype, device=self._device)
        dist.broadcast(found, self.way.loss_rank)
        return found

    def whole(
        self, outputs: Sequence[tuple[Share, WholeOutputs]]
    ) -> dict[str, torch.Tensor]:
        """Return the outputs of all stages, whole, by name, to every rank."""
        own: dict[str, torch.Tensor] = {}
        for share, found in outputs:
            own |= made_whole(found, share.groups)
        types = {n: (x.shape, x.dtype) for n, x in own.items()}
        told = everyone_tells(types)
        first = {
            name: rank for rank in reversed(range(len(told))) for name in told[rank]
        }
        for name, rank in sorted(first.items()):
            shape, dtype = told[rank][name]
            if name not in own:
                own[name] = torch.empty(shape, dtype=dtype, device=self._device)
            own[name] = own[name].contiguous()
            dist.broadcast(as_bytes(own[name].view(-1)), rank)
        return own
