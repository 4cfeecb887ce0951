"""What a user trains with: one rank's program with its parameters.

A step takes the whole batch of all ranks on each of them, runs this rank's part and
leaves the gradients in ``.grad`` of local parameters, which are plain tensors in the
optimizer's placement: any elementwise optimizer works on them. It writes to them, not
through ``.data``: a step has to see that they changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from partita.compiler.capture.random_numbers import seed_value
from partita.compiler.errors import BadOptions
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.program import InputKind, OutputKind
from partita.compiler.ir.sbp import Placement
from partita.runtime import gradients, optimizer_state, state
from partita.runtime.batch import BatchSpec
from partita.runtime.brought import Brought, held_placements
from partita.runtime.dtensors import to_dtensor
from partita.runtime.executor import Executable, bind_program, only
from partita.runtime.feeds import FeedKey, Feeds, part_of_batch
from partita.runtime.groups import Groups
from partita.runtime.inventory import Kept, take_inventory
from partita.runtime.materialize import Init, materialize
from partita.runtime.microbatches import Microbatches, Outputs, joined
from partita.runtime.reshard import reshard
from partita.runtime.shards import take_shard
from partita.runtime.state import Held

Unflatten = Callable[[dict[str, torch.Tensor]], Any]
"""From the outputs of a forward, by name, to what the model would have returned."""

_STATE = (InputKind.PARAMETER, InputKind.BUFFER)
_FORWARD = (OutputKind.LOSS, OutputKind.OUTPUT, OutputKind.MUTATED_BUFFER)


class ParallelProgram:
    """One rank's share of a model that runs on all ranks of a mesh.

    Args:
        local: what this rank runs.
        model: where names, tied and frozen parameters and the first values come from;
            it is not changed, and not needed afterwards.
        groups: the ranks, bound.
        batch: how a call's arguments are named, and the example's types.
        init: see ``materialize``.
        bringing: what brings parameters into the step that are updated in another
            placement.
        completing: where ``local`` runs on microbatches, what completes the sums over
            them.
        unflatten: gives a forward's outputs their form; unless given, they come as a
            dict by name.

    Attributes:
        loss_scale: what the gradients are multiplied with.
        seed: of dropout and everything else that the model draws; equal on all ranks.
        num_steps: the steps that have run; each draws other numbers than the last.
    """

    def __init__(
        self,
        local: LocalProgram,
        model: nn.Module,
        groups: Groups,
        batch: BatchSpec,
        init: Init = None,
        unflatten: Unflatten | None = None,
        bringing: Sequence[LocalProgram] = (),
        completing: Sequence[LocalProgram] = (),
    ) -> None:
        self.groups = groups
        self.loss_scale = 1.0
        self.seed = 0
        self.num_steps = 0
        self._batch = batch
        self._unflatten = unflatten
        self._everywhere = Placement.broadcast(local.mesh.ndim)
        self._whole = bind_program(local, groups)
        self._forward: Executable | None = None
        self._parts: Microbatches | None = None
        if local.in_time.count > 1:
            self._parts = Microbatches.of(self._whole, completing, groups)
        kept = take_inventory(model)
        placements = _placements(local, bringing, kept)
        self._brought = Brought(bringing, groups)
        shards = materialize(model, kept, placements, groups, init)
        self._held = tuple(
            Held.of(entry, placements[entry.name], shards[entry.name]) for entry in kept
        )
        by_name = {name: entry.shard for entry in self._held for name in entry.names}
        self._state: dict[FeedKey, torch.Tensor] = {
            (role.kind, role.name): by_name[role.name]
            for role in local.inputs
            if role.kind in _STATE
        }

    # --- parameters and buffers

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the local parameters, tied ones once, by the model's (first) names."""
        for entry in self._held:
            if isinstance(entry.shard, nn.Parameter):
                yield entry.name, entry.shard

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the local parameters in the order of the model's."""
        return (parameter for _, parameter in self.named_parameters())

    def named_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the local buffers by the model's names."""
        for entry in self._held:
            if not isinstance(entry.shard, nn.Parameter):
                yield entry.name, entry.shard

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield all that the program holds: parameters, buffers, its constants."""
        for value in (*self._state.values(), *self._whole.own.values()):
            if isinstance(value, torch.Tensor):
                yield value

    def release_copies(self) -> None:
        """Let go of parameters' copies in the placement that the step wants.

        There are some where the optimizer updates another placement. The next step
        makes them again, on all ranks: call it on all.
        """
        self._brought.release()

    # --- running

    def step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Run forward and backward on a global batch; return the global loss.

        Gradients are added to ``.grad``; buffers that the model writes to are written.

        Raises:
            BadBatch: when an input is not as in the example.
            BadOptions: when the plan was made without a loss (``train=False``).
        """
        if all(role.kind != OutputKind.LOSS for role in self._whole.local.outputs):
            raise BadOptions(
                "step: the plan was made with train=False, so there is no loss; call "
                "the program itself for its outputs"
            )
        batch = self._batch.read(args, kwargs)
        entering = self._entering()
        taken = _storages(self._whole.own.values()) | _storages(entering.values())
        if self._parts is None:
            feeds = self._feeds(batch, entering)
            taken |= _storages(feeds.values())
            outputs = _by_role(self._whole, feeds)
        else:
            feeds_of = partial(self._feeds, batch, entering)
            outputs = self._parts.run(feeds_of, self.groups.device)
        losses: list[torch.Tensor] = []
        for role, value in outputs.items():
            if value is None:
                continue
            if role.kind == OutputKind.LOSS:
                losses.append(value)
            elif role.kind == OutputKind.GRADIENT:
                held = self._state[(InputKind.PARAMETER, role.name)]
                parameter = cast(nn.Parameter, held)
                gradient = gradients.owned(value, parameter, taken)
                gradients.accumulate(parameter, gradient)
        self._write_buffers(outputs)
        self.num_steps += 1
        return losses[0]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the forward alone on a global batch; return its outputs, whole."""
        found = {
            name: reshard(x, shape, placed, self._everywhere, self.groups)
            for name, (x, shape, placed) in self._run_forward(args, kwargs).items()
        }
        return found if self._unflatten is None else self._unflatten(found)

    def output_dtensors(self, *args: Any, **kwargs: Any) -> dict[str, DTensor]:
        """Run the forward alone; return its outputs by name, left where they are."""
        return {
            name: to_dtensor(x, shape, placed, self.groups)
            for name, (x, shape, placed) in self._run_forward(args, kwargs).items()
        }

    def _run_forward(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[str, tuple[torch.Tensor, tuple[int, ...], Placement]]:
        """Return the outputs by name: shard, logical shape and placement."""
        if self._forward is None:
            forward = only(self._whole.local, _FORWARD)
            self._forward = replace(self._whole, local=forward)
        local = self._forward.local
        batch, entering = self._batch.read(args, kwargs), self._entering()
        runs = [
            _by_role(self._forward, self._feeds(batch, entering, number))
            for number in range(local.in_time.count)
        ]
        self._write_buffers(runs[-1])
        found: dict[str, tuple[torch.Tensor, tuple[int, ...], Placement]] = {}
        for position, role in enumerate(local.outputs):
            type_, placement = (
                local.output_types[position],
                local.output_placements[position],
            )
            values = [x for run in runs if (x := run[role]) is not None]
            if role.kind == OutputKind.MUTATED_BUFFER or not values:
                continue
            assert type_ is not None
            assert placement is not None
            shape = type_.shape
            if local.in_time.joins:
                join, whole = local.in_time.joins[position], self._everywhere
                parts = [
                    reshard(x, shape, placement, whole, self.groups) for x in values
                ]
                value = joined(parts, join)
                shape, placement = tuple(value.shape), whole
            else:
                (value,) = values
            found[role.name] = value, shape, placement
        return found

    def _entering(self) -> Feeds:
        """Return the parameters and buffers as a step receives them."""
        return {**self._state, **self._brought.feeds(self._state)}

    def _feeds(
        self, batch: Mapping[str, torch.Tensor], entering: Feeds, number: int = 0
    ) -> Feeds:
        """Return what enters the run of a microbatch."""
        feeds: dict[FeedKey, torch.Tensor | int] = dict(entering)
        mesh, here = self.groups.mesh, self.groups.coordinates
        local = self._whole.local
        values = {(InputKind.INPUT, name): value for name, value in batch.items()}
        parts = part_of_batch(local, values, number)
        for role, placement in zip(local.inputs, local.input_placements, strict=True):
            key = (role.kind, role.name)
            if key in parts:
                assert placement is not None
                shard = take_shard(parts[key], placement, mesh, here)
                feeds[key] = shard.to(self.groups.device)
            elif role.kind == InputKind.SEED:
                value = seed_value(self.seed, self.num_steps)
                feeds[key] = torch.tensor(value, device=self.groups.device)
            elif role.kind == InputKind.LOSS_SCALE and self.loss_scale != 1.0:
                own = self._whole.own[key]
                assert isinstance(own, torch.Tensor)
                feeds[key] = torch.full_like(own, self.loss_scale)
        return feeds

    def _write_buffers(self, outputs: Outputs) -> None:
        """Copy the buffers' new values back, after all of them were computed."""
        values = {
            role.name: value
            for role, value in outputs.items()
            if role.kind == OutputKind.MUTATED_BUFFER and value is not None
        }
        old = _storages(self._state[(InputKind.BUFFER, name)] for name in values)
        for name, value in values.items():
            if _storages([value]) <= old:  # one buffer's new value is another's old one
                values[name] = value.clone()
        for name, value in values.items():
            self._state[(InputKind.BUFFER, name)].copy_(value)

    # --- training

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Scale all gradients so that their global norm is at most ``max_norm``.

        Equal to ``torch.nn.utils.clip_grad_norm_`` on the whole model.

        Returns:
            The global norm before that, the same on every rank.
        """
        parameters = [h for h in self._held if isinstance(h.shard, nn.Parameter)]
        return gradients.clip_grad_norm(parameters, self.groups, max_norm, norm_type)

    # --- checkpoints

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return what the model's own state dict holds, as DTensors, tied names too.

        ``torch.distributed.checkpoint`` saves it and reads into it; then, since what
        has a segmented split is a copy here, give it to ``load_state_dict``.
        """
        return state.state_dict(self._held, self.groups)

    def load_state_dict(self, state_dict: Mapping[str, torch.Tensor]) -> None:
        """Take over a state dict of the whole model: DTensors, or whole tensors.

        Raises:
            BadOptions: naming what is missing, unknown or of another shape.
        """
        state.load_state_dict(self._held, self.groups, state_dict)

    def optimizer_state_dict(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the optimizer's state by the model's full names, as DTensors.

        Raises:
            BadOptions: for an optimizer that is not elementwise, or not over
                ``parameters()``.
        """
        return optimizer_state.optimizer_state_dict(optimizer, self._held, self.groups)

    def load_optimizer_state_dict(
        self, optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]
    ) -> None:
        """Take over what ``optimizer_state_dict`` returned, here or on other ranks.

        Raises:
            BadOptions: naming what does not fit this optimizer.
        """
        optimizer_state.load_optimizer_state_dict(
            optimizer, self._held, self.groups, state_dict
        )


def _placements(
    local: LocalProgram, bringing: Sequence[LocalProgram], kept: Sequence[Kept]
) -> dict[str, Placement]:
    """Return in which placement each parameter and buffer is held, by its first name.

    What the graph does not use is held whole by every rank.
    """
    by_name = {
        role.name: placement
        for role, placement in zip(local.inputs, local.input_placements, strict=True)
        if role.kind in _STATE and placement is not None
    }
    by_name |= held_placements(bringing)
    everywhere = Placement.broadcast(local.mesh.ndim)
    return {
        entry.name: next((by_name[n] for n in entry.names if n in by_name), everywhere)
        for entry in kept
    }


def _by_role(executable: Executable, feeds: Feeds) -> Outputs:
    return dict(zip(executable.local.outputs, executable.run(feeds), strict=True))


def _storages(values: Iterable[object]) -> set[int]:
    """Return the addresses of the memory that the tensors among ``values`` use."""
    return {
        value.untyped_storage().data_ptr()
        for value in values
        if isinstance(value, torch.Tensor)
    }
