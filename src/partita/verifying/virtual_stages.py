"""All ranks of all stages of a plan, to be run in this one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx

from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.program import OutputRole
from partita.compiler.local_invariants import in_step, local_of_all
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.stages import read_schedule
from partita.compiler.plan.wires import Wire, wires_of
from partita.compiler.schedules.schedule import Schedule
from partita.lowering import Lowered
from partita.passes.promote_precision import promote_precision
from partita.runtime.brought import copies_of
from partita.runtime.feeds import FeedKey, part_of_batch, shards_of
from partita.runtime.virtual import run_all
from partita.runtime.virtual_pipeline import VirtualPipeline, VirtualStage
from partita.runtime.virtual_step import Left

Programs = list[LocalProgram]
"""What the ranks of a stage run, by rank."""

Values = Mapping[FeedKey, torch.Tensor]
"""Whole tensors by what they enter as."""


@dataclass(frozen=True)
class StageRanks:
    """The programs of a stage's ranks.

    Attributes:
        ranks: forward and backward together, where their inputs are named.
        parts: forward and backward apart.
        bringing: what brings parameters from their optimizers, one for each.
        completing: what completes each sum over the microbatches.
    """

    ranks: Programs
    parts: list[Programs]
    bringing: list[Programs]
    completing: list[Programs]

    @classmethod
    def of(cls, lowered: Lowered) -> StageRanks:
        """Return the programs of every rank of a stage."""
        ranks = lowered.of_all()
        known: dict[fx.GraphModule, tuple[LocalProgram, ...]] = {}
        rows: list[list[LocalProgram]] = []
        for rank in ranks:
            if rank.graph_module not in known:
                known[rank.graph_module] = lowered.parted(rank)
            parts = known[rank.graph_module]
            rows.append([replace(p, coordinates=rank.coordinates) for p in parts])
        at = [rank.coordinates for rank in ranks]
        return cls(
            ranks,
            _by_program(rows),
            _by_program([lowered.bringing_at(c) for c in at]),
            _by_program([lowered.completing_at(c) for c in at]),
        )

    @property
    def every(self) -> list[Programs]:
        """All that runs in a step."""
        return [*self.bringing, *self.parts, *self.completing]

    def promoted(self) -> StageRanks:
        """Return the same in double precision."""
        return StageRanks(
            promote_precision(self.ranks),
            [promote_precision(programs) for programs in self.parts],
            [promote_precision(programs) for programs in self.bringing],
            [promote_precision(programs) for programs in self.completing],
        )


@dataclass(frozen=True)
class VirtualStages:
    """The stages of a plan, their schedule and what they hand each other."""

    stages: list[StageRanks]
    schedule: Schedule
    wires: Sequence[Wire]
    device: torch.device | None = None

    @classmethod
    def of(
        cls, plan: Plan, lowered: Sequence[Lowered], device: torch.device | None = None
    ) -> VirtualStages:
        """Return the stages of a plan, each of which was carried out."""
        stages = [StageRanks.of(stage) for stage in lowered]
        return cls(stages, read_schedule(plan), wires_of(plan), device)

    def check(self) -> None:
        """Check what every rank runs, before anything does.

        Raises:
            InvariantViolation: as ``local`` and ``in_step`` do.
        """
        for stage in self.stages:
            for programs in stage.every:
                in_step(programs[0].mesh, local_of_all(programs))

    def promoted(self) -> VirtualStages:
        """Return the same in double precision."""
        stages = [stage.promoted() for stage in self.stages]
        return replace(self, stages=stages)

    def run(self, values: Values) -> list[tuple[Programs, dict[OutputRole, Left]]]:
        """Run a step; return what leaves each stage, with its ranks' programs."""
        brought = [
            self._brought(number, stage, values)
            for number, stage in enumerate(self.stages)
        ]

        def feeds_of(stage: int, number: int) -> list[dict[FeedKey, torch.Tensor]]:
            ranks = self.stages[stage].ranks
            parts = part_of_batch(ranks[0], values, number)
            return [
                shards_of(local, parts) | own
                for local, own in zip(ranks, brought[stage], strict=True)
            ]

        stages = [VirtualStage(s.parts, s.completing) for s in self.stages]
        pipeline = VirtualPipeline(
            stages, self.schedule, self.wires, feeds_of, self.device
        )
        left = pipeline.run()
        return [
            (stage.ranks, own) for stage, own in zip(self.stages, left, strict=True)
        ]

    def _brought(
        self, number: int, stage: StageRanks, values: Values
    ) -> list[dict[FeedKey, torch.Tensor]]:
        """Return the copies of parameters that are updated in another placement."""
        found: list[dict[FeedKey, torch.Tensor]] = [{} for _ in stage.ranks]
        for programs in stage.bringing:
            held = [shards_of(local, values) for local in programs]
            made = run_all(programs, held, [number] * len(programs), self.device)
            for own, copies in zip(found, made, strict=True):
                own |= copies_of(programs[0], copies)
        return found


def _by_program(rows: Sequence[Sequence[LocalProgram]]) -> list[Programs]:
    """Return by program what is given by rank."""
    return [list(programs) for programs in zip(*rows, strict=True)]
