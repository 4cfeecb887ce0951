"""A pipeline that never drains: each stage updates its weights batch by batch.

The stages run one forward and one backward in turn over all batches, with no flush
between two of them. A stage updates as soon as it has the gradients of a batch, while
others are under way; a backward uses the very weights that its forward used, which are
kept for it (weight stashing). A stage that ``n`` others follow holds at most ``n + 1``
versions of its weights, and the forward of a microbatch sees those of ``n + 1``
microbatches before.

That is not what one process computes: gradients are of weights that are some updates
old, of each stage by another number.

Source: Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN
Training", SOSP 2019, sections 3.2 and 3.3; with several microbatches a batch, "Memory-
Efficient Pipeline-Parallel DNN Training", ICML 2021, section 3.1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from partita.compiler.errors import BadOptions
from partita.compiler.ir.program import OutputKind, OutputRole
from partita.compiler.plan.stage_records import TransferKind
from partita.compiler.schedules.make import one_forward_one_backward
from partita.compiler.schedules.schedule import Action, Schedule, Work
from partita.compiler.schedules.transfers import with_transfers
from partita.runtime.by_itself import by_itself
from partita.runtime.executor import Outputs
from partita.runtime.feeds import FeedKey
from partita.runtime.finishing import Finishing
from partita.runtime.pipeline_step import PipelineStep
from partita.runtime.storages import storages
from partita.runtime.way import Way

_HALVES = (Work.BACKWARD_INPUT, Work.BACKWARD_WEIGHT)


@dataclass(frozen=True)
class Streamed:
    """What came of training asynchronously.

    Attributes:
        losses: of each batch, by the weights that its forward saw; the same on every
            rank.
        most_versions: how many versions of its weights this rank held at once.
    """

    losses: torch.Tensor
    most_versions: int


def asynchronous_schedule(way: Way, num_batches: int) -> Schedule:
    """Return what all ranks do over so many batches.

    Raises:
        BadOptions: when a rank has several stages, or two stages use one parameter:
            whose update would have to wait for both.
    """
    num_ranks, num_stages = len(way.schedule.rows), way.schedule.num_stages
    if num_stages != num_ranks:
        raise BadOptions(
            f"train_asynchronously: the plan has {num_stages} stages on {num_ranks} "
            "ranks of the pipeline; want one on each (stages_per_rank=1)"
        )
    for wire in way.wires:
        if wire.kind in (TransferKind.STATE, TransferKind.GRADIENT):
            transfer = wire.transfer
            raise BadOptions(
                f"train_asynchronously: stages {transfer.sender} and "
                f"{transfer.receiver} both use {transfer.name!r}, of which they would "
                "have versions of different age; want a plan that uses it in one "
                "stage, or step()"
            )
    if not num_batches:
        raise BadOptions("train_asynchronously: there are no batches; want at least 1")
    count = num_batches * way.schedule.num_microbatches
    made = one_forward_one_backward(num_ranks, count)
    return with_transfers(_cut_as(way.schedule, made))


def _cut_as(plan: Schedule, made: Schedule) -> Schedule:
    """Return a schedule with the backwards cut in two that the plan's stages cut."""
    rows: list[tuple[Action, ...]] = []
    for row in made.rows:
        own: list[Action] = []
        for action in row:
            is_cut = action.work is Work.BACKWARD and action.stage in plan.cut
            works = _HALVES if is_cut else (action.work,)
            own += (replace(action, work=work) for work in works)
        rows.append(tuple(own))
    return replace(made, rows=tuple(rows))


@dataclass
class AsynchronousRun(PipelineStep):
    """Batches under way, one behind another.

    Attributes:
        num_parts: the microbatches of a batch.
        update: brings the parameters on, once ``.grad`` is that of a batch.
        losses: by batch, on the rank that has them.
        seen: by microbatch under way, the updates that its weights have seen.
        most_versions: of the weights, held at once.
    """

    num_parts: int = 1
    update: Callable[[], None] = lambda: None
    losses: dict[int, torch.Tensor] = field(default_factory=dict[int, torch.Tensor])
    seen: dict[int, int] = field(default_factory=dict[int, int])
    most_versions: int = 1
    _num_updates: int = 0
    _sums_of: dict[int, dict[FeedKey, torch.Tensor]] = field(
        default_factory=dict[int, dict[FeedKey, torch.Tensor]]
    )

    def _sums(self, stage: int, number: int) -> dict[FeedKey, torch.Tensor]:
        batch = number // self.num_parts
        if batch not in self._sums_of:
            self._sums_of[batch] = self.row.stages[stage].zeros()
        return self._sums_of[batch]

    def _do(self, action: Action) -> None:
        super()._do(action)
        number = action.microbatch
        if number is None:
            return
        if action.work is Work.FORWARD:
            self.seen[number] = self._num_updates
            versions = {*self.seen.values(), self._num_updates}
            self.most_versions = max(self.most_versions, len(versions))
        elif action.work.frees:
            del self.seen[number]
            batch, part = divmod(number, self.num_parts)
            if part == self.num_parts - 1:
                self._finish(action.stage, batch)

    def _reduce(self, stage: int) -> None:
        """Do nothing: every batch is reduced by itself."""

    def _finish(self, stage: int, batch: int) -> None:
        """Update the weights of a stage by the gradients of a batch."""
        own = self.row.stages[stage]
        share = own.share
        sums = self._sums_of.pop(batch)
        found = self._buffers(stage, batch)
        found |= Finishing(own.completing, own.sums, sums).end()
        self._stash(storages(share.state.values()))
        taken = set(share.addresses(share.entering()))
        loss = share.take(found.items(), taken)
        if loss is not None:
            self.losses[batch] = loss
        with by_itself("train_asynchronously"):
            self.update()
        self._num_updates += 1

    def _buffers(self, stage: int, batch: int) -> dict[OutputRole, torch.Tensor | None]:
        """Return what the last microbatch of a batch writes to buffers."""
        numbers = range(batch * self.num_parts, (batch + 1) * self.num_parts)
        left: Outputs = {}
        for number in numbers:
            left = self.left.pop((stage, number))
        return {r: x for r, x in left.items() if r.kind is OutputKind.MUTATED_BUFFER}

    def _stash(self, changing: set[int]) -> None:
        """Copy what backwards under way still need of tensors that will change."""
        copies: dict[int, torch.UntypedStorage] = {}
        for held in self.held.values():
            for key, value in held.items():
                if not isinstance(value, torch.Tensor):
                    continue
                storage = value.untyped_storage()
                at = storage.data_ptr()
                if at in changing:
                    if at not in copies:
                        copies[at] = storage.clone()
                    like = value.storage_offset(), value.shape, value.stride()
                    empty = torch.empty(0, dtype=value.dtype, device=value.device)
                    held[key] = empty.set_(copies[at], *like)
