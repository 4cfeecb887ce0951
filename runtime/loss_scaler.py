"""The scale of a loss whose gradients are made in float16, found while training.

Small gradients are nothing in float16 and large ones infinite. So the loss is scaled
until gradients just do not overflow: where one does, on any rank of any stage, no rank
updates and the scale falls; after many updates it grows. The numbers are those of
``torch.amp.GradScaler``.

Source: Micikevicius et al., "Mixed Precision Training", arXiv:1710.03740, section 3.2;
torch's "Automatic Mixed Precision" on ``GradScaler``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.distributed as dist

from partita.compiler.errors import BadOptions
from partita.runtime.by_itself import check_together
from partita.runtime.gradients import local_gradient
from partita.runtime.program import ParallelProgram


class LossScaler:
    """Scales the loss of a program's steps; updates where gradients are finite.

    On every rank, in place of ``optimizer.step()``:

    * ``unscale_()``, before gradients are clipped or looked at; else ``step`` does it
    * ``step(optimizer)``, which all ranks skip if one of them has a gradient that is
      infinite or no number; of several optimizers each, once a step of the program

    Args:
        program: whose steps are scaled from now on, by its ``loss_scale``.
        init_scale: the first scale.
        growth_factor: what the scale is multiplied with after ``growth_interval``
            updates without an overflow.
        backoff_factor: what it is multiplied with at an overflow.
        growth_interval: see there.

    Raises:
        BadOptions: for factors by which it would not grow, or not fall.
    """

    def __init__(
        self,
        program: ParallelProgram,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        if not (0 < init_scale < math.inf and growth_factor > 1):
            raise BadOptions(
                f"init_scale is {init_scale!r}, growth_factor {growth_factor!r}; want "
                "a number above 0 and one above 1"
            )
        if not (0 < backoff_factor < 1 and growth_interval >= 1):
            raise BadOptions(
                f"backoff_factor is {backoff_factor!r}, growth_interval "
                f"{growth_interval!r}; want a number between 0 and 1 and at least 1"
            )
        self._program = program
        self._growth_factor = growth_factor
        self._backoff_factor = backoff_factor
        self._growth_interval = growth_interval
        self._num_updates = 0  # since the scale changed
        self._is_finite = True  # of the gradients that were unscaled last
        self._unscaled_at: int | None = None  # how many steps the program had done
        self._counted_at: int | None = None  # likewise, of the update counted last
        program.loss_scale = float(init_scale)

    @property
    def scale(self) -> float:
        """What the loss of the next step is multiplied with."""
        return self._program.loss_scale

    def unscale_(self) -> bool:
        """Divide all gradients by the scale, once a step of the program, on all ranks.

        Returns:
            Whether those of all ranks are finite.

        Raises:
            BadOptions: inside ``train_asynchronously``.
        """
        if self._unscaled_at == self._program.num_steps:
            return self._is_finite
        check_together("whether all gradients are finite")
        device = self._program.groups.device
        gradients = [
            local_gradient(parameter.grad)
            for parameter in self._program.parameters()
            if parameter.grad is not None and parameter.numel() > 0
        ]
        largest = torch.nn.utils.get_total_norm(
            gradients or [torch.zeros((), device=device)], math.inf
        )
        overflow = (~torch.isfinite(largest)).to(device, torch.float32)
        dist.all_reduce(overflow, dist.ReduceOp.MAX)
        for gradient in gradients:
            gradient.mul_(1.0 / self.scale)
        self._is_finite = overflow.item() == 0.0
        self._unscaled_at = self._program.num_steps
        return self._is_finite

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Update, unless there was an overflow, and set the scale of what follows.

        The scale is set by the first optimizer that is stepped after a step of the
        program: all gradients were unscaled for it.

        Returns:
            Whether the optimizer has updated.
        """
        is_finite = self.unscale_()
        if is_finite:
            optimizer.step()
        if self._counted_at != self._unscaled_at:
            self._counted_at = self._unscaled_at
            self._count(is_finite)
        return is_finite

    def _count(self, is_finite: bool) -> None:
        """Set the scale of what follows an update, or an overflow."""
        if is_finite:
            self._num_updates += 1
            if self._num_updates < self._growth_interval:
                return
        factor = self._growth_factor if is_finite else self._backoff_factor
        scale = self.scale * factor
        if scale < math.inf:  # as large as it may be, it stays
            self._program.loss_scale = scale
        self._num_updates = 0

    def state_dict(self) -> dict[str, float]:
        """Return what training goes on from; equal on all ranks."""
        return {"scale": self.scale, "num_updates": self._num_updates}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Take over what ``state_dict`` returned.

        Raises:
            BadOptions: naming what is missing.
        """
        missing = [name for name in ("scale", "num_updates") if name not in state]
        if missing:
            raise BadOptions(
                f"loss scaler: found no {missing[0]!r}; want what state_dict returned"
            )
        self._program.loss_scale = float(state["scale"])
        self._num_updates = int(state["num_updates"])
        self._unscaled_at = self._counted_at = None  # the program may have gone back
