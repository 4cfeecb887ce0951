"""What a user trains with: one rank's program with its parameters.

A step takes the whole batch of all ranks on each of them, runs this rank's part and
leaves the gradients in ``.grad`` of local parameters, which are plain tensors in the
optimizer's placement: any elementwise optimizer works on them; another is refused when
it first steps (optimizer_trial.py). It writes to them, not through ``.data``: a step
has to see that they changed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from partita.compiler.capture.torch_private import untraced
from partita.compiler.errors import BadOptions
from partita.compiler.schedules.schedule import Action
from partita.runtime import gradients, optimizer_state, state
from partita.runtime.agree import everyone_checks, everyone_tells
from partita.runtime.alone import Alone
from partita.runtime.asynchronous import Streamed
from partita.runtime.batch import BatchSpec
from partita.runtime.dtensors import to_dtensor
from partita.runtime.feeds import Feeds, FeedsOf
from partita.runtime.first_state import first_state, with_state
from partita.runtime.first_values import check_alike
from partita.runtime.inventory import take_inventory
from partita.runtime.leaving import WholeOutputs
from partita.runtime.materialize import Init
from partita.runtime.module_face import ModuleFace
from partita.runtime.no_backward import returned
from partita.runtime.optimizer_trial import OptimizerTrials
from partita.runtime.pipeline import Pipeline, Way
from partita.runtime.share import Drawn, Share, StagePrograms

Unflatten = Callable[[dict[str, torch.Tensor]], Any]
"""From the outputs of a forward, by name, to what the model would have returned."""


class ParallelProgram(ModuleFace):
    """One rank's share of a model that runs on all ranks of a mesh.

    Args:
        stages: what this rank runs: of one stage, or of some in a pipeline.
        model: where names, tied and frozen parameters and the first values come from;
            it is not changed, and not needed afterwards.
        batch: how a call's arguments are named, and the example's types.
        init: see ``materialize``.
        unflatten: gives a forward's outputs their form; unless given, they come as a
            dict by name.
        way: the pipeline that the stages are in; ``None`` where there is one stage.

    Attributes:
        loss_scale: what the gradients are multiplied with; see ``LossScaler``.
        seed: of dropout and everything else that the model draws; equal on all ranks.
        num_steps: the steps that have run, or calls where there is no loss; each draws
            other numbers than the last.
    """

    def __init__(
        self,
        stages: Mapping[int, StagePrograms],
        model: nn.Module,
        batch: BatchSpec,
        init: Init = None,
        unflatten: Unflatten | None = None,
        way: Way | None = None,
    ) -> None:
        super().__init__(model)
        self.loss_scale = 1.0
        self.seed = 0
        self.num_steps = 0
        self._failure = ""
        self._batch = batch
        self._unflatten = unflatten
        kept = take_inventory(model)
        self._names = tuple(entry.name for entry in kept)
        homes = {entry.name: 0 for entry in kept} if way is None else way.homes(kept)
        self._shares = {
            number: Share(
                programs,
                model,
                kept,
                {name for name, home in homes.items() if home == number},
                init,
            )
            for number, programs in stages.items()
        }
        shares = self._shares.values()
        self._held = tuple(
            held
            for entry in kept
            for share in shares
            for held in share.held
            if held.name == entry.name
        )
        self._elsewhere = {
            name
            for entry in kept
            if homes[entry.name] not in stages
            for name in entry.saved
        }
        first, *_ = shares
        self.groups = first.groups
        self._runner = Alone(first) if way is None else Pipeline(self._shares, way)
        self._frozen = [
            (name, p) for name, p in self.named_parameters() if not p.requires_grad
        ]
        if way is not None:
            self._place = f", stage {', '.join(map(str, stages))}"
        self._trials = OptimizerTrials(self._held, is_alone=way is None)

    # --- parameters and buffers

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the local parameters, tied ones once, by the model's (first) names."""
        for entry in self._held:
            if isinstance(entry.shard, nn.Parameter):
                yield entry.name, entry.shard

    def named_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the local buffers by the model's names."""
        for entry in self._held:
            if not isinstance(entry.shard, nn.Parameter):
                yield entry.name, entry.shard

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield all that the program holds: parameters, buffers, its constants."""
        for share in self._shares.values():
            yield from share.tensors()

    def check_first_values(self) -> None:
        """Check that all ranks began with the same values; each calls it.

        Raises:
            BadOptions: on every rank, naming a parameter or buffer that differs.
        """
        shares = self._shares.values()
        check_alike({name: x for share in shares for name, x in share.sums.items()})

    def release_copies(self) -> None:
        """Let go of parameters' copies in the placement that the step wants.

        There are some where the optimizer updates another placement. The next step
        makes them again, on all ranks: call it on all.
        """
        for share in self._shares.values():
            share.brought.release()

    # --- running

    @property
    def actions(self) -> tuple[Action, ...]:
        """What the last step of this rank did, in order; none without a pipeline."""
        return self._runner.actions

    @untraced
    def step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Run forward and backward on a global batch; return the global loss.

        Gradients are added to ``.grad``; buffers that the model writes to are written.

        Raises:
            BadBatch: when an input is not as in the example.
            BadOptions: when the plan was made without a loss (``train=False``).
        """
        if not self._runner.has_loss:
            raise BadOptions(
                "step: the plan was made with train=False, so there is no loss; call "
                "the program itself for its outputs"
            )
        self.check_frozen()
        batch = self._batch.read(args, kwargs)
        entering = {number: share.entering() for number, share in self._shares.items()}
        taken: set[int] = set()
        for number, share in self._shares.items():
            taken |= share.addresses(entering[number])
        with self._running():
            outputs = self._runner.step(self._feeds_of(batch, entering), taken)
            losses = [
                share.take(outputs[number], taken)
                for number, share in self._shares.items()
            ]
            self.num_steps += 1
        own = next((x for x in losses if x is not None), None)
        return returned(self._runner.loss(own))

    def train_asynchronously(
        self, batches: Iterable[Mapping[str, Any]], update: Callable[[], None]
    ) -> Streamed:
        """Train on batches one behind another, in a pipeline that never drains.

        Every stage calls ``update`` when ``.grad`` has the gradients of a batch, while
        others are under way; see asynchronous.py. This is not synchronous training:
        gradients are of weights that are up to as many updates old as stages follow.

        Args:
            batches: the keyword arguments of a step each, the same on every rank; held
                until the last is done.
            update: steps the optimizer over ``parameters()`` and clears gradients. It
                runs on each rank by itself: nothing in it may be of all ranks.

        Raises:
            BadBatch: when an input is not as in the example.
            BadOptions: when the plan is no pipeline of one stage a rank, trains
                nothing, or uses one parameter in several stages; and for a norm of all
                gradients, or a ``LossScaler``, in ``update``.
        """
        runner = self._runner
        if not isinstance(runner, Pipeline) or not runner.has_loss:
            raise BadOptions(
                "train_asynchronously: the plan is no pipeline that trains; want a "
                "mesh with an axis pp and train=True"
            )
        self.check_frozen()
        read = [self._batch.read((), dict(batch)) for batch in batches]
        first, parts = self.num_steps, runner.way.schedule.num_microbatches

        def feeds_of(stage: int, number: int) -> Feeds:
            batch, part = divmod(number, parts)
            drawn = Drawn(self.seed, first + batch, self.loss_scale)
            share = self._shares[stage]
            return share.feeds(read[batch], share.entering(), drawn, part)

        with self._running():
            streamed = runner.stream(feeds_of, len(read), update)
        self.num_steps += len(read)
        return streamed

    @untraced
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the forward alone on a global batch; return its outputs, whole."""
        found = self._runner.whole(self._run_forward(args, kwargs))
        if self._runner.has_loss and torch.is_grad_enabled():
            for name, value in found.items():
                found[name] = returned(value)
        return found if self._unflatten is None else self._unflatten(found)

    def output_dtensors(self, *args: Any, **kwargs: Any) -> dict[str, DTensor]:
        """Run the forward alone; return its outputs by name, left where they are.

        A rank has those of its own stages.
        """
        return {
            name: to_dtensor(x, shape, placed, share.groups)
            for share, outputs in self._run_forward(args, kwargs)
            for name, (x, shape, placed) in outputs.items()
        }

    def _run_forward(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[tuple[Share, WholeOutputs]]:
        """Return the outputs of this rank's stages; write the buffers."""
        batch = self._batch.read(args, kwargs)
        entering = {number: share.entering() for number, share in self._shares.items()}
        with self._running():
            runs = self._runner.forward(self._feeds_of(batch, entering))
            if not self._runner.has_loss:  # else steps alone go on
                self.num_steps += 1
        found: list[tuple[Share, WholeOutputs]] = []
        for number, share in self._shares.items():
            share.write_buffers(runs[number][-1])
            found.append((share, share.leaving(runs[number])))
        return found

    def _feeds_of(
        self, batch: Mapping[str, torch.Tensor], entering: Mapping[int, Feeds]
    ) -> FeedsOf:
        drawn = Drawn(self.seed, self.num_steps, self.loss_scale)

        def feeds_of(stage: int, number: int) -> Feeds:
            return self._shares[stage].feeds(batch, entering[stage], drawn, number)

        return feeds_of

    @contextmanager
    def _running(self) -> Generator[None]:
        """Run a block whose ops are in the dtypes that the plan has for them.

        A loop that had ``torch.autocast`` may still be in it; the plan's own
        ``precision`` is in the program.

        Raises:
            RuntimeError: behind a block that failed: other ranks may still be in it,
                and would take for theirs what belongs to another.
        """
        if self._failure and dist.get_world_size() > 1:
            raise RuntimeError(
                f"this rank failed in an earlier call ({self._failure}), in which "
                "others may wait for it; end this run"
            )
        try:
            with torch.autocast(self.groups.device.type, enabled=False):
                yield
        except BaseException as error:  # an interrupt leaves others waiting, too
            first_line = str(error).partition("\n")[0]
            self._failure = f"{type(error).__name__}: {first_line}"
            raise

    # --- training

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float | str = 2.0
    ) -> torch.Tensor:
        """Scale all gradients so that their global norm is at most ``max_norm``.

        Equal to ``torch.nn.utils.clip_grad_norm_`` on the whole model.

        Returns:
            The global norm before that, the same on every rank.
        """
        parameters = [h for h in self._held if isinstance(h.shard, nn.Parameter)]
        device = self.groups.device
        order = float(norm_type)  # it may be "inf", as for torch
        return gradients.clip_grad_norm(parameters, device, max_norm, order)

    # --- checkpoints

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return what the model's own state dict holds, as DTensors, tied names too.

        ``torch.distributed.checkpoint`` saves it and reads into it; then, since what
        has a segmented split is a copy here, give it to ``load_state_dict``.
        """
        return state.state_dict(self._held)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True
    ) -> state.IncompatibleKeys:
        """Take over a state dict of the whole model: DTensors, or whole tensors.

        All ranks call it, and nothing is written where one of them cannot take it.

        Args:
            state_dict: what modules save beside tensors is passed over in it.
            strict: whether it is to have all that the model saves, and nothing else.

        Returns:
            What is missing and what is unknown, which is passed over, as torch does.

        Raises:
            BadOptions: on every rank, naming what is missing, unknown or of another
                shape.
        """
        found = state.load_state_dict(
            self._held, state_dict, self._elsewhere, strict=strict
        )
        missing = {n for rank in everyone_tells(found.missing_keys) for n in rank}
        return found._replace(missing_keys=[n for n in self._names if n in missing])

    def optimizer_state_dict(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the optimizer's state by the model's full names, as DTensors.

        Of an optimizer that has not stepped it is what a checkpoint is read into. Call
        it on all ranks.

        Raises:
            BadOptions: for an optimizer that is not elementwise, or not over
                ``parameters()``.
        """
        self._trials.of(optimizer)
        with first_state(optimizer, self._trained()):
            found = optimizer_state.optimizer_state_dict(optimizer, self._held)
        if isinstance(self._runner, Pipeline):
            groups, names = found["param_groups"], self._names
            found["param_groups"] = optimizer_state.with_names_of_all(groups, names)
        return found

    def load_optimizer_state_dict(
        self, optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]
    ) -> None:
        """Take over what ``optimizer_state_dict`` returned, here or on other ranks.

        All ranks call it, and nothing is written where one of them cannot take it.

        Raises:
            BadOptions: on every rank, naming what does not fit this optimizer.
        """
        everyone_checks(lambda: self._trials.of(optimizer))
        optimizer_state.load_optimizer_state_dict(
            optimizer,
            self._held,
            state_dict,
            self._elsewhere,
            with_state(optimizer, self._trained()),
        )

    def _trained(self) -> list[torch.Tensor]:
        return [p for share in self._shares.values() for p in share.trained()]
