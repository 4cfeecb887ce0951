"""The forward and the backward of a stage, ready to run on this rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from partita.compiler.ir.program import OutputKind, OutputRole
from partita.runtime.closing import BoundClosing, needed_behind
from partita.runtime.compile_together import compile_together
from partita.runtime.executor import Executable, bind_program, only
from partita.runtime.feeds import FeedKey
from partita.runtime.microbatches import adding, zeros_for
from partita.runtime.share import Share


@dataclass(frozen=True)
class StageParts:
    """What runs of a stage.

    Attributes:
        share: what this rank has of it.
        parts: the forward and the backward, bound, adding to sums.
        forward: the forward with the model's outputs, for when no backward follows.
        completing: what completes sums.
        sums: by output, the one that it is of, or that it is where there is one
            microbatch.
        later: what of the feeds and of what is saved the parts behind each still need.
        closing: the last backward where sums begin to be completed in it.
    """

    share: Share
    parts: tuple[Executable, ...]
    forward: Executable
    completing: tuple[Executable, ...]
    sums: Mapping[OutputRole, FeedKey]
    later: tuple[frozenset[FeedKey], ...]
    closing: BoundClosing | None = None

    @classmethod
    def of(cls, share: Share) -> StageParts:
        """Bind the programs of a share."""
        groups, programs = share.groups, share.programs
        bound = [
            bind_program(part, groups, share.own, programs.compilation)
            for part in programs.parts
        ]
        kinds = tuple(kind for kind in OutputKind if kind is not OutputKind.SAVED)
        forward = replace(bound[0], local=only(bound[0].local, kinds))
        needless = tuple(kind for kind in OutputKind if kind is not OutputKind.OUTPUT)
        parts: list[Executable] = []
        sums: dict[OutputRole, FeedKey] = {}
        for part in bound:
            local, own = adding(only(part.local, needless))
            parts.append(replace(part, local=local))
            sums |= own
        completing = tuple(bind_program(p, groups) for p in programs.completing)
        closing = None
        if programs.closing is not None:
            closing = BoundClosing.of(programs.closing, share)
        later = needed_behind(parts)
        return cls(share, tuple(parts), forward, completing, sums, later, closing)

    def without_backward(self) -> StageParts:
        """Return the stage as it runs where no backward follows."""
        later = (frozenset[FeedKey](),)
        return replace(self, parts=(self.forward,), sums={}, later=later, closing=None)

    def zeros(self) -> dict[FeedKey, torch.Tensor]:
        """Return what gradients and the loss are added to."""
        found: dict[FeedKey, torch.Tensor] = {}
        for part in self.parts:
            found |= zeros_for(part.local, self.share.groups.device)
        return found


def ready(stages: Mapping[int, StageParts]) -> dict[int, StageParts]:
    """Return the stages of this rank as they are to run. All ranks call it."""
    if not any(s.share.programs.compilation.is_whole for s in stages.values()):
        return dict(stages)
    chains = [stage.share.chain(stage.parts) for stage in stages.values()]
    compiled = compile_together(chains)
    return {
        number: replace(stage, parts=parts)
        for (number, stage), parts in zip(stages.items(), compiled, strict=True)
    }
