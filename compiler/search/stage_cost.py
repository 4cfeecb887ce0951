"""What a stage that was planned adds to the step of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from partita.compiler.cost.memory import timeline
from partita.compiler.ir.program import InputKind, OutputKind, Program
from partita.compiler.ir.sbp import Placement
from partita.compiler.plan.document import Document
from partita.compiler.schedules.schedule import Work
from partita.compiler.simulate.stage_items import stage_items


@dataclass(frozen=True)
class StageCost:
    """The figures of a planned stage, and how its ends lie.

    Attributes:
        seconds: what an action takes, by its work.
        before_s: what precedes the microbatches, once.
        after_s: what follows them, the optimizer's step among it.
        peak_bytes: what a rank holds at most, of one microbatch at a time.
        saved_bytes: what each microbatch more adds to that.
        at_peak: what the peak is made of, by category.
        entering: by input of the program, the placement in which it enters.
        leaving: by output, that in which it leaves; ``None`` where nothing does.
    """

    seconds: Mapping[Work, float]
    before_s: float
    after_s: float
    peak_bytes: int
    saved_bytes: int
    at_peak: Mapping[str, int]
    entering: tuple[Placement, ...]
    leaving: tuple[Placement | None, ...]

    @staticmethod
    def of(document: Document, program: Program) -> StageCost:
        """Return the figures of a plan of one stage, whose program is given."""
        items, held = stage_items(document), timeline(document)
        entering: dict[tuple[InputKind, str], Placement] = {}
        for node in document.nodes.values():
            (placement, *_) = node.signature.results or (None,)
            if node.role is not None and placement is not None:
                entering[node.role.kind, node.role.name] = placement
        leaving: dict[tuple[OutputKind, str], Placement | None] = {
            (output.kind, output.name): output.placement for output in document.outputs
        }
        return StageCost(
            items.seconds,
            sum(item.seconds for item in items.before),
            sum(item.seconds for item in items.after),
            held.peak_bytes,
            held.saved_bytes,
            {str(kind): size for kind, size in held.by_category(held.peak).items()},
            tuple(entering[role.kind, role.name] for role in program.inputs),
            tuple(leaving[role.kind, role.name] for role in program.outputs),
        )

    def bytes(self, live: int) -> int:
        """Return what a rank holds at most, of so many microbatches."""
        return self.peak_bytes + (live - 1) * self.saved_bytes


@dataclass(frozen=True)
class StageHeld:
    """What a rank of a planned stage holds; attributes as those of ``StageCost``."""

    peak_bytes: int
    saved_bytes: int
    at_peak: Mapping[str, int]

    @staticmethod
    def of(document: Document) -> StageHeld:
        """Return what is held under a plan of one stage."""
        held = timeline(document)
        parts = held.by_category(held.peak)
        at_peak = {str(category): size for category, size in parts.items()}
        return StageHeld(held.peak_bytes, held.saved_bytes, at_peak)

    def bytes(self, live: int) -> int:
        """Return what a rank holds at most, of so many microbatches."""
        return self.peak_bytes + (live - 1) * self.saved_bytes


def peak_bytes(document: Document, live: int) -> int:
    """Return what a rank of a stage holds at most, with so many microbatches."""
    held = timeline(document)
    return held.peak_bytes + (live - 1) * held.saved_bytes
