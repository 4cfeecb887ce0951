"""What one rank has of one stage: its program, and its part of parameters and buffers.

Where there is no pipeline there is one stage, of which every rank has a share.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from partita.compiler.capture.random_numbers import seed_value
from partita.compiler.ir.local_program import Closing, LocalProgram
from partita.compiler.ir.program import InputKind, OutputKind, OutputRole
from partita.compiler.ir.sbp import Placement
from partita.runtime import gradients
from partita.runtime.brought import Brought, held_placements
from partita.runtime.compilation import Compilation
from partita.runtime.compile_together import Chain
from partita.runtime.executor import Executable, Made, Outputs
from partita.runtime.feeds import FeedKey, Feeds, in_parts, own_feeds
from partita.runtime.first_values import sum_of_bits
from partita.runtime.groups import Groups
from partita.runtime.inventory import Kept
from partita.runtime.leaving import WholeOutputs, leaving
from partita.runtime.materialize import Init, materialize
from partita.runtime.shards import take_shard
from partita.runtime.side_by_side import (
    PartOfRow,
    lay_side_by_side,
    read_as_one,
    role_of,
    rows_of,
)
from partita.runtime.state import Held
from partita.runtime.storages import Storages, storages


@dataclass(frozen=True)
class StagePrograms:
    """What a rank runs of a stage.

    Attributes:
        local: the forward and the backward in one.
        groups: the stage's ranks, bound.
        bringing: what brings parameters into the step that are updated in another
            placement.
        completing: what completes each sum over microbatches.
        parts: the forward and the backward apart, where there is a pipeline.
        closing: the last backward, where sums over microbatches begin in it.
        compilation: how the step runs.
    """

    local: LocalProgram
    groups: Groups
    bringing: Sequence[LocalProgram] = ()
    completing: Sequence[LocalProgram] = ()
    parts: Sequence[LocalProgram] = ()
    closing: Closing | None = None
    compilation: Compilation = Compilation.REGIONS

    def all(self) -> tuple[LocalProgram, ...]:
        """Return all that is run of every microbatch."""
        closing = () if self.closing is None else self.closing.phases
        return (self.local, *self.parts, *closing)

    def read_as_one(self) -> StagePrograms:
        """Return the programs as they read parameters that lie side by side."""
        closing = self.closing
        if closing is not None:
            phases = tuple(map(read_as_one, closing.phases))
            closing = replace(closing, phases=phases)
        parts = tuple(map(read_as_one, self.parts))
        local = read_as_one(self.local)
        return replace(self, local=local, parts=parts, closing=closing)


@dataclass(frozen=True)
class Drawn:
    """What a step is fed beside the batch and the state; equal on all ranks."""

    seed: int
    num_steps: int
    loss_scale: float


class Share:
    """A stage on this rank.

    Args:
        programs: what it runs.
        model: where first values come from.
        kept: its parameters and buffers.
        home: the first names of those that this stage holds.
        init: see ``materialize``.
    """

    def __init__(
        self,
        programs: StagePrograms,
        model: nn.Module,
        kept: Sequence[Kept],
        home: Collection[str],
        init: Init = None,
    ) -> None:
        rows = tuple(dict.fromkeys(r for p in programs.all() for r in rows_of(p)))
        self.programs = programs = programs.read_as_one() if rows else programs
        self.local = programs.local
        self.groups = programs.groups
        local = self.local
        inputs = zip(
            local.inputs, local.input_types, local.input_placements, strict=True
        )
        self._anew = [each for each in inputs if not each[0].kind.is_state]
        self._storages = Storages()
        self.own = own_feeds(self.local, self.groups.device)
        self.brought = Brought(programs.bringing, self.groups)
        own = [entry for entry in kept if entry.name in home]
        placements = _placements(self.local, programs.bringing, own)
        shards, self.sums = materialize(
            model, kept, placements, self.groups, init, _read(local)
        )
        self.sums |= {
            f"{name}, a tensor of its code": sum_of_bits(local.constants[name])
            for kind, name in self.own
            if kind is InputKind.CONSTANT
        }
        first_of = {name: entry.name for entry in own for name in entry.names}
        self.joined: dict[FeedKey, torch.Tensor] = {
            (InputKind.JOINED, role_of(row).name): whole
            for row, whole in lay_side_by_side(shards, rows, first_of).items()
        }
        self.held = tuple(
            Held.of(entry, placements[entry.name], shards[entry.name], self.groups)
            for entry in own
        )
        is_of_stage = bool(programs.parts)
        self._trained = {
            name: (entry.shard, gradients.part_of(entry, is_of_stage))
            for entry in self.held
            for name in entry.names
            if isinstance(entry.shard, nn.Parameter)
        }
        by_name = {name: entry.shard for entry in self.held for name in entry.names}
        in_rows = dict.fromkeys(first_of[name] for row in rows for name in row)
        self._in_rows = [PartOfRow.of(by_name[name]) for name in in_rows]
        self.state: dict[FeedKey, torch.Tensor] = {
            (role.kind, role.name): by_name[role.name]
            for role in self.local.inputs
            if role.kind.is_state
        }

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield parameters, buffers and the program's constants."""
        for value in (*self.state.values(), *self.own.values()):
            if isinstance(value, torch.Tensor):
                yield value

    def trained(self) -> Iterator[torch.Tensor]:
        """Yield the parameters that a step leaves a gradient of."""
        ends = zip(self.local.outputs, self.local.output_types, strict=True)
        for role, type_ in ends:
            if role.kind is OutputKind.GRADIENT and type_ is not None:
                yield self.state[InputKind.PARAMETER, role.name]

    def chain(self, programs: Sequence[Executable]) -> Chain:
        """Return programs of this stage, to compile: each may save for the next."""
        brought = held_placements(self.programs.bringing)
        state = {k: x for k, x in self.state.items() if k[1] not in brought}
        constants = {
            key: value
            for key, value in self.own.items()
            if key[0] is InputKind.CONSTANT and isinstance(value, torch.Tensor)
        }
        held = {**constants, **state, **self.joined}
        return Chain(programs, held, self.groups.device)

    def entering(self) -> Feeds:
        """Return the parameters and buffers as a step receives them."""
        for part in self._in_rows:
            part.put_back()
        return {**self.state, **self.joined, **self.brought.feeds(self.state)}

    def feeds(
        self,
        batch: Mapping[str, torch.Tensor],
        entering: Feeds,
        drawn: Drawn,
        number: int = 0,
    ) -> Feeds:
        """Return what enters the run of a microbatch, but what other stages make."""
        feeds: dict[FeedKey, torch.Tensor | int] = dict(entering)
        device = self.groups.device
        values = {(InputKind.INPUT, name): value for name, value in batch.items()}
        types = ((role, type_) for role, type_, _ in self._anew)
        parts = in_parts(values, number, types)
        for role, _, placement in self._anew:
            key = (role.kind, role.name)
            if key in parts:
                assert placement is not None
                here = self.groups.mesh, self.groups.coordinates
                feeds[key] = _sent(take_shard(parts[key], placement, *here), device)
            elif role.kind is InputKind.SEED:
                value = seed_value(drawn.seed, drawn.num_steps)
                feeds[key] = torch.full((), value, dtype=torch.int64, device=device)
            elif role.kind is InputKind.LOSS_SCALE and drawn.loss_scale != 1.0:
                own = self.own[key]
                assert isinstance(own, torch.Tensor)
                feeds[key] = torch.full_like(own, drawn.loss_scale)
        return feeds

    def anew(self, feeds: Feeds) -> Iterator[torch.Tensor | int]:
        """Yield what a run is fed beside parameters and buffers."""
        for role, *_ in self._anew:
            key = (role.kind, role.name)
            if key in feeds:
                yield feeds[key]

    def addresses(self, entering: Feeds) -> frozenset[int]:
        """Return the storages of what enters every step, and of what is brought."""
        every = *entering.values(), *self.own.values()
        return self._storages.of([x for x in every if isinstance(x, torch.Tensor)])

    def take(self, outputs: Made, taken: set[int]) -> torch.Tensor | None:
        """Add gradients to ``.grad``, write buffers; return the loss, if it is here.

        A parameter that was frozen since it was planned gets none.

        Args:
            outputs: what the step made.
            taken: the addresses of storages that others use.
        """
        loss: torch.Tensor | None = None
        made: list[tuple[torch.Tensor, nn.Parameter]] = []
        parts: list[gradients.Part | None] = []
        others: dict[OutputRole, torch.Tensor | None] = {}
        for role, value in outputs:
            if value is None:
                continue
            if role.kind is OutputKind.GRADIENT:
                parameter, part = self._trained[role.name]
                if parameter.requires_grad:  # else it was frozen since it was planned
                    made.append((value, parameter))
                    parts.append(part)
            elif role.kind is OutputKind.LOSS:
                loss = value
            else:
                others[role] = value
        own = gradients.owned(made, taken)
        for (_, parameter), gradient, part in zip(made, own, parts, strict=True):
            gradients.accumulate(parameter, gradient, part)
        self.write_buffers(others)
        return loss

    def leaving(self, runs: Sequence[Outputs]) -> WholeOutputs:
        """Return the outputs of the model that a forward makes here."""
        return leaving(self.local, runs, self.groups)

    def write_buffers(self, outputs: Outputs) -> None:
        """Copy the buffers' new values back, after all of them were computed."""
        values = {
            role.name: value
            for role, value in outputs.items()
            if role.kind is OutputKind.MUTATED_BUFFER and value is not None
        }
        old = storages(self.state[InputKind.BUFFER, name] for name in values)
        for name, value in values.items():
            if storages([value]) <= old:  # one buffer's new value is another's old one
                values[name] = value.clone()
        for name, value in values.items():
            self.state[InputKind.BUFFER, name].copy_(value)


def _sent(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return ``x`` on a device; on its way to a GPU the host does not wait for it."""
    if device.type == "cuda" and x.device.type == "cpu":
        x = x.pin_memory()
    return x.to(device, non_blocking=True)


def _read(local: LocalProgram) -> frozenset[str]:
    """Return the names of the parameters and buffers that a program has a use for."""
    entering = local.graph_module.graph.find_nodes(op="placeholder")
    pairs = zip(local.inputs, entering, strict=True)
    return frozenset(r.name for r, node in pairs if r.kind.is_state and node.users)


def _placements(
    local: LocalProgram, bringing: Sequence[LocalProgram], kept: Sequence[Kept]
) -> dict[str, Placement]:
    """Return in which placement each parameter and buffer is held, by its first name.

    What the graph does not use is held whole by every rank.
    """
    by_name = {
        role.name: placement
        for role, placement in zip(local.inputs, local.input_placements, strict=True)
        if role.kind.is_state and placement is not None
    }
    by_name |= held_placements(bringing)
    everywhere = Placement.broadcast(local.mesh.ndim)
    return {
        entry.name: next((by_name[n] for n in entry.names if n in by_name), everywhere)
        for entry in kept
    }
