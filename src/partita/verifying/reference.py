"""What a verified program is compared with: the user's own module, called as it is."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.random import fork_rng

from partita.compiler.capture.eager_draws import LayoutFreeDraws
from partita.compiler.capture.fake_copy import tensors_in
from partita.compiler.capture.mixed_precision import autocasting
from partita.compiler.capture.output_form import name_outputs
from partita.compiler.capture.random_numbers import seed_value
from partita.compiler.capture.scored_model import (
    LossFunction,
    name_outputs_beside_loss,
    pick_loss,
)
from partita.compiler.capture.torch_private import pytree
from partita.verifying.relative_error import largest_of, relative_error, scale_floor

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Reference:
    """What the user's module computes: values by name, in one precision.

    ``kept_buffers`` have after the step the value that they had before, as have
    ``kept_parameters``, which are those that are not trained: a model may write to them
    as it does to buffers.
    """

    values: Tensors
    largest_gradient: float
    kept_buffers: Tensors
    kept_parameters: Tensors = field(default_factory=Tensors)

    @classmethod
    def of(
        cls,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        loss: LossFunction | None,
        train: bool,
        draws: tuple[str, ...] = (),
        precision: str | None = None,
        scale: float = 1.0,
    ) -> Reference:
        """Call a copy of ``model`` as the user does, and differentiate its loss.

        Random numbers are those that a program with these ``draws`` draws for seed 0.
        Buffers are as the forward leaves them: in the backward a checkpoint runs its
        function again, and so writes again to what a batch norm there keeps.
        With a ``precision`` the forward and the loss are autocast. With another scale
        than 1 all rounds otherwise: parameters are moved by a rounding each, the loss
        is scaled in the backward and gradients are scaled back.
        """
        model = _copied_model(model)
        if scale != 1.0:
            _move_by_roundings(model, seed=round(100 * scale))
        args, kwargs = pytree.tree_map(_copied, (args, kwargs))
        before = {n: b.clone() for n, b in _written(model).items()}
        device = device_of(model)
        seed = torch.tensor(seed_value(0, 0), device=device)
        drawing = LayoutFreeDraws(seed, draws)
        casting = autocasting(precision, device.type)
        with fork_rng(devices=[]), drawing:
            with torch.set_grad_enabled(train), casting:
                returned = model(*args, **kwargs)
                scalar = pick_loss(returned, loss) if train else None
            after = {n: b.detach().clone() for n, b in _written(model).items()}
            if scalar is not None:  # checkpoints draw in their backward
                scalar.backward(torch.full_like(scalar, scale))
        values, outputs = Tensors(), name_outputs(returned)
        if scalar is not None:
            values["loss"] = scalar.detach()
            outputs = name_outputs_beside_loss(returned, loss)
        values |= {f"output:{n}": t.detach() for n, t in outputs.items()}
        gradients = {
            name: parameter.grad.to_dense() / scale
            for name, parameter in model.named_parameters()
            if parameter.grad is not None
        }
        kept, frozen, buffers = Tensors(), Tensors(), dict(model.named_buffers())
        for name, value in after.items():
            same = kept if name in buffers else frozen
            is_same = torch.equal(value, before[name])
            (same if is_same else values)[f"buffer:{name}"] = value
        largest = max((largest_of(g) for g in gradients.values()), default=0.0)
        return cls(values | gradients, largest, kept, frozen)

    def value(self, name: str) -> torch.Tensor | None:
        """Return what a tensor is after the step; ``None`` for one not known."""
        kept = self.kept_buffers | self.kept_parameters
        return self.values.get(name, kept.get(name))

    def scale(self, name: str, value: torch.Tensor) -> float:
        """Return what an error of a tensor is relative to.

        It is max|b|, for gradients at least 1e-3 of the largest one, for buffers of
        the largest in the same module: a mean that is zero but for rounding errors
        goes with a variance.
        """
        floor = scale_floor(name, self.largest_gradient, self.values, self.kept_buffers)
        return max(largest_of(value), floor, 1e-300)

    def distance(self, other: Reference) -> dict[str, float]:
        """Return how far each tensor of ``other`` is from this one."""
        return {
            name: relative_error(other.values[name], value, self.scale(name, value))
            for name, value in self.values.items()
            if name in other.values
        }


def _written(model: torch.nn.Module) -> Tensors:
    """Return what the forward may write to: buffers, and parameters not trained."""
    frozen = {n: p for n, p in model.named_parameters() if not p.requires_grad}
    return dict(model.named_buffers()) | frozen


def _move_by_roundings(model: torch.nn.Module, seed: int) -> None:
    """Move each element of a parameter by about the least that its dtype can tell."""
    drawing = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            # What has fewer than 16 bits is no number to compute with.
            if parameter.is_floating_point() and parameter.dtype.itemsize > 1:
                drawn = torch.rand(parameter.shape, generator=drawing) < 0.5
                factors = 1.0 + torch.finfo(parameter.dtype).eps * (2.0 * drawn - 1.0)
                parameter.mul_(factors.to(parameter))


def device_of(model: torch.nn.Module) -> torch.device:
    """Return where the model is, and so its inputs and all of the verification."""
    tensors = (*model.parameters(), *model.buffers())
    return tensors[0].device if tensors else torch.device("cpu")


def _copied_model(model: torch.nn.Module) -> torch.nn.Module:
    """Return a copy, also where the model keeps tensors that it has computed.

    Torch copies no tensor with a history; an earlier call may have left such ones, as
    attention weights to look at or a loss to be added.
    """
    computed = [own for own in tensors_in(model) if own.grad_fn is not None]
    return copy.deepcopy(model, {id(t): _copied(t) for t in computed})


def _copied(leaf: Any) -> Any:
    """Return a leaf that the model may write to, with no history."""
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf
