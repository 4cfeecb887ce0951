"""A plan's step as its schedule runs it: every action of every rank, with its time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from partita.compiler.cost.stage_seconds import StageSeconds, stage_seconds
from partita.compiler.plan.document import Document
from partita.compiler.plan.stage_records import TransferKind
from partita.compiler.plan.stages import read_schedule, stage_document
from partita.compiler.schedules.schedule import Action
from partita.compiler.simulate.pipeline import Run, simulate_pipeline


@dataclass(frozen=True)
class SimulatedStep:
    """A step of a pipeline.

    Attributes:
        run: compute and transfers.
        once: by row, the seconds of what follows all microbatches there.
        stages: what each stage's actions take.
    """

    run: Run
    once: tuple[float, ...]
    stages: tuple[StageSeconds, ...]

    @property
    def seconds(self) -> float:
        """From the first action to the end of the last rank's work."""
        return max(
            (row[-1].end_s if row else 0.0) + once
            for row, once in zip(self.run.compute, self.once, strict=True)
        )


def simulate_step(document: Document) -> SimulatedStep:
    """Return the step of a plan of several stages.

    What a stage sends to several others counts on the link to its neighbour. State that
    is shared and parts of gradients that go home are counted once, where they end.
    """
    schedule = read_schedule(document)
    stages = tuple(
        stage_seconds(stage_document(document, number))
        for number in range(len(document.stages))
    )
    hops: dict[tuple[int, bool], float] = {}
    once = [0.0] * len(schedule.rows)
    for number, stage in enumerate(stages):
        once[schedule.rank_of[number]] += stage.once
    for transfer in document.transfers:
        if transfer.kind.is_of_microbatch:
            way = transfer.sender, transfer.kind is TransferKind.FORWARD
            hops[way] = hops.get(way, 0.0) + transfer.seconds
        else:
            once[schedule.rank_of[transfer.receiver]] += transfer.seconds

    def seconds(action: Action) -> float:
        return stages[action.stage].of(action.work)

    def hop_seconds(stage: int, to: int) -> float:
        return hops.get((stage, to > stage), 0.0)

    run = simulate_pipeline(schedule, seconds, hop_seconds)
    return SimulatedStep(run, tuple(once), stages)


def seconds_by_part(document: Document, step: SimulatedStep) -> Mapping[str, float]:
    """Return what the step of the slowest rank is made of."""
    ends = [row[-1].end_s if row else 0.0 for row in step.run.compute]
    row = max(range(len(ends)), key=lambda r: ends[r] + step.once[r])
    busy = step.run.busy_s[row]
    return {
        "compute of stages": busy,
        "waiting for stages": ends[row] - busy,
        "after the microbatches": step.once[row],
    }
