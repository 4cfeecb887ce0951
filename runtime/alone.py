"""Run the steps of a program that is no pipeline: there is one stage, on every rank."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from partita.compiler.errors import CompilationFailed
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.program import InputKind, OutputKind
from partita.compiler.schedules.schedule import Action
from partita.runtime.compilation import Compilation
from partita.runtime.compile_together import compile_together
from partita.runtime.executor import (
    Executable,
    Made,
    Outputs,
    bind_program,
    only,
    without_outputs,
)
from partita.runtime.feeds import Feeds, FeedsOf
from partita.runtime.leaving import WholeOutputs, made_whole
from partita.runtime.microbatches import Microbatches, accumulating
from partita.runtime.replayed import Replayed
from partita.runtime.share import Share
from partita.runtime.storages import storages

FORWARD = (OutputKind.LOSS, OutputKind.OUTPUT, OutputKind.MUTATED_BUFFER)
"""What the forward alone leaves behind."""


class Alone:
    """The one stage of a program on this rank."""

    def __init__(self, share: Share) -> None:
        programs = share.programs
        self._share = share
        self._device = share.groups.device
        self._forward: Executable | None = None
        self._parts: Microbatches | None = None
        body = without_outputs(share.local) if self.has_loss else share.local
        if share.local.in_time.count == 1:
            self._whole = self._ready(body)
        else:
            body, sums = accumulating(body)
            completing = [bind_program(p, share.groups) for p in programs.completing]
            self._parts = Microbatches(self._ready(body), tuple(completing), sums)

    def _ready(self, local: LocalProgram) -> Executable:
        """Return a program as it is to run. All ranks call it."""
        share, compilation = self._share, self._share.programs.compilation
        program = bind_program(local, share.groups, share.own, compilation)
        if not compilation.is_whole:
            return program
        try:
            return self._compiled(program)
        except CompilationFailed as error:
            if compilation is not Compilation.AUTO:
                raise
            warnings.warn(f"the program runs in regions: {error}", stacklevel=2)
            return bind_program(local, share.groups, share.own, Compilation.REGIONS)

    def _compiled(self, program: Executable) -> Executable:
        """Return a program compiled as a whole.

        Raises:
            CompilationFailed: on all ranks, when it failed on one.
        """
        replays = self._share.programs.compilation is Compilation.CUDA_GRAPH
        chain = self._share.chain([program])
        if not replays and program.local.in_time.count == 1:
            buffers = (key for key in chain.held if key[0] is InputKind.BUFFER)
            chain = replace(chain, written=frozenset(buffers))
        ((compiled,),) = compile_together([chain])
        if replays:
            anew = [position for position, _ in compiled.laid_out]
            return replace(compiled, code=Replayed(compiled.code, anew))
        return compiled

    @property
    def actions(self) -> tuple[Action, ...]:
        """None: there is no schedule."""
        return ()

    @property
    def has_loss(self) -> bool:
        """Whether there is something to differentiate."""
        return any(role.kind is OutputKind.LOSS for role in self._share.local.outputs)

    def step(self, feeds_of: FeedsOf, taken: set[int]) -> Mapping[int, Made]:
        """Run a step; return what it makes.

        ``taken`` has the storages of parameters and buffers; it gets those of what else
        the step was fed.
        """
        if self._parts is not None:

            def of_microbatch(number: int) -> Feeds:
                return feeds_of(0, number)

            return {0: self._parts.run(of_microbatch, self._device).items()}
        feeds = dict(feeds_of(0, 0))
        taken |= storages(self._share.anew(feeds))
        return {0: self._whole.made(feeds)}

    def loss(self, found: torch.Tensor | None) -> torch.Tensor:
        """Return the loss, which every rank has."""
        assert found is not None
        return found

    def forward(self, feeds_of: FeedsOf) -> dict[int, list[Outputs]]:
        """Run the forward alone; return what each microbatch makes."""
        if self._forward is None:
            self._forward = self._ready(only(self._share.local, FORWARD))
        numbers = range(self._share.local.in_time.count)
        return {0: [self._forward.by_role(dict(feeds_of(0, n))) for n in numbers]}

    def whole(
        self, outputs: Sequence[tuple[Share, WholeOutputs]]
    ) -> dict[str, torch.Tensor]:
        """Return the outputs, whole, by name."""
        ((share, found),) = outputs
        return made_whole(found, share.groups)
