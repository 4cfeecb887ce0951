"""What the ranks of a stage run, each kind of rank once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import fx

from partita.compiler.ir.local_program import LocalProgram
from partita.lowering import Lowered

JOINT = ("step",)
"""The steps of a stage that is alone: forward and backward in one."""

APART = ("forward", "backward", "backward_weight")
"""The steps of a stage among others; its backward may be cut in two."""


@dataclass(frozen=True)
class RankKind:
    """What ranks of a stage run that run the same.

    Attributes:
        steps: what they run of a microbatch, forward and backward apart or in one.
        bringing: what brings parameters into it.
        completing: what completes sums over microbatches.
    """

    steps: tuple[LocalProgram, ...]
    bringing: tuple[LocalProgram, ...]
    completing: tuple[LocalProgram, ...]

    @classmethod
    def of(cls, lowered: Lowered, local: LocalProgram) -> RankKind:
        """Return what the ranks run that run ``local``, forward and backward apart.

        Where there is one stage they are one program.
        """
        here, is_one = local.coordinates, len(lowered.plan.stages) == 1
        steps = (local,) if is_one else lowered.parted(local)
        return cls(steps, lowered.bringing_at(here), lowered.completing_at(here))

    def programs(self, suffix: str) -> Iterator[tuple[str, LocalProgram]]:
        """Yield all programs with names for them, which end in ``suffix``."""
        words = JOINT if len(self.steps) == 1 else APART
        for word, step in zip(words, self.steps, strict=False):
            yield f"{word}_{suffix}", step
        for number, program in enumerate(self.bringing):
            yield f"bring_{suffix}_{number}", program
        for number, program in enumerate(self.completing):
            yield f"complete_{suffix}_{number}", program


@dataclass(frozen=True)
class StageKinds:
    """What the ranks of a stage run.

    Attributes:
        locals: by rank, forward and backward in one.
        kinds: what there is to run, each kind once.
        kind_of: by rank the number of its kind.
    """

    locals: tuple[LocalProgram, ...]
    kinds: tuple[RankKind, ...]
    kind_of: tuple[int, ...]

    @classmethod
    def of(cls, lowered: Lowered) -> StageKinds:
        """Return what all ranks run of a stage that was carried out."""
        ranks = tuple(lowered.of_all())
        known: dict[fx.GraphModule, RankKind] = {}
        for local in ranks:
            if local.graph_module not in known:
                known[local.graph_module] = RankKind.of(lowered, local)
        order = {module: number for number, module in enumerate(known)}
        numbers = tuple(order[local.graph_module] for local in ranks)
        return cls(ranks, tuple(known.values()), numbers)
