"""What scripts call on a model: done where a program can, or refused with the way.

A program is no ``nn.Module``: the model was captured as one graph, in one mode, dtype
and set of trained parameters, which are in the plan.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Self

import torch
import torch.distributed as dist
from torch import nn

from partita.compiler.errors import BadOptions
from partita.compiler.plan.units import format_bytes
from partita.runtime.groups import Groups


class ModuleFace(ABC):
    """The side of a program that looks like a model's.

    Args:
        model: what was captured.

    Attributes:
        num_steps: the steps that have run, or calls where there is no loss.
        training: the mode that the model was captured in.
        groups: the ranks.
    """

    num_steps: int
    groups: Groups

    def __init__(self, model: nn.Module) -> None:
        self.training = model.training
        self._class_name = type(model).__name__
        self._has_parameters = any(True for _ in model.parameters())
        self._place = ""
        self._frozen: Sequence[tuple[str, nn.Parameter]] = ()

    @abstractmethod
    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the local parameters by name."""

    @abstractmethod
    def named_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the local buffers by name."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the local parameters in the order of the model's.

        One without elements where a rank of a pipeline has none, though the model has:
        optimizers refuse to be given nothing.
        """
        own = [parameter for _, parameter in self.named_parameters()]
        if not own and self._has_parameters:
            own = [nn.Parameter(torch.empty(0, device=self.groups.device))]
        return iter(own)

    def buffers(self) -> Iterator[torch.Tensor]:
        """Yield the local buffers in the order of the model's."""
        return (buffer for _, buffer in self.named_buffers())

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Let go of all gradients, or fill them with zeros."""
        for parameter in self.parameters():
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()

    def train(self, mode: bool = True) -> Self:
        """Return the program, where ``mode`` is the one that it was captured in.

        Raises:
            BadOptions: where it is the other.
        """
        if mode != self.training:
            asked, found = ("train()", "evaluation") if mode else ("eval()", "training")
            options = "" if mode else ", options=pt.Options(train=False)"
            raise BadOptions(
                f"{asked}: the model was in {found} mode when it was planned, and its "
                "dropout and statistics are so in the program; want another one, of "
                f"pt.plan(model.{asked}, ...{options}), given this one's state_dict()"
            )
        return self

    def eval(self) -> Self:
        """Return the program, where it was captured in evaluation mode; see train."""
        return self.train(False)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Return the program, where it has the device and dtype that are asked for.

        Raises:
            BadOptions: where it has another.
        """
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor):
                self._check_device(value.device)
                self._check_dtype(value.dtype)
            elif isinstance(value, torch.dtype):
                self._check_dtype(value)
            elif isinstance(value, str | torch.device):
                self._check_device(torch.device(value))
            elif isinstance(value, int) and not isinstance(value, bool):
                self._check_device(torch.device("cuda", value))
        return self

    def cpu(self) -> Self:
        """Return the program, where it is on the CPU; see ``to``."""
        return self.to("cpu")

    def cuda(self, device: int | torch.device | None = None) -> Self:
        """Return the program, where it is on that GPU; see ``to``."""
        return self.to("cuda" if device is None else device)

    def float(self) -> Self:
        """Return the program, where its parameters are float32; see ``to``."""
        return self.to(torch.float32)

    def double(self) -> Self:
        """Return the program, where its parameters are float64; see ``to``."""
        return self.to(torch.float64)

    def half(self) -> Self:
        """Return the program, where its parameters are float16; see ``to``."""
        return self.to(torch.float16)

    def bfloat16(self) -> Self:
        """Return the program, where its parameters are bfloat16; see ``to``."""
        return self.to(torch.bfloat16)

    def _check_device(self, device: torch.device) -> None:
        own = self.groups.device
        if device.type != own.type or device.index not in (None, own.index):
            raise BadOptions(
                f"to: the program is on {own}, not {device}; want "
                f"pt.compile(model, plan, device={str(device)!r})"
            )

    def _check_dtype(self, dtype: torch.dtype) -> None:
        for name, parameter in self.named_parameters():
            if parameter.is_floating_point() and parameter.dtype != dtype:
                raise BadOptions(
                    f"to: {name!r} is {parameter.dtype} in the plan, not {dtype}; want "
                    f"a plan of model.to({dtype}), or Options(precision=...), which "
                    "computes in 16 bits"
                )

    def check_frozen(self) -> None:
        """Check that what was frozen when it was planned is so still.

        One that was frozen since gets no gradient; see ``Share.take``.

        Raises:
            BadOptions: naming a parameter that the plan has no gradient of.
        """
        for name, parameter in self._frozen:
            if parameter.requires_grad:
                raise BadOptions(
                    f"parameter {name!r} was frozen when the model was planned, so the "
                    "program has no gradient of it; want a plan of the model in which "
                    "it requires grad"
                )

    def __repr__(self) -> str:
        """Return what this is in a line."""
        own = [parameter for _, parameter in self.named_parameters()]
        size = sum(parameter.nbytes for parameter in own)
        return (
            f"<ParallelProgram of {self._class_name}{self._place} on mesh "
            f"{self.groups.mesh}: rank {dist.get_rank()} of {dist.get_world_size()}, "
            f"{len(own)} parameters, {format_bytes(size)} of them here, "
            f"{self.num_steps} steps done>"
        )

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse to be copied or pickled.

        Raises:
            BadOptions: with what can be.
        """
        raise BadOptions(
            "a program cannot be copied or pickled: it is bound to its process groups; "
            "want its state_dict(), and pt.compile(model, plan) for another one"
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Say why there is no such attribute."""
            raise AttributeError(
                f"a program has no {name!r}: it is the model as one graph, without "
                "its modules; what is to be set up is, on the model, before pt.plan"
            )
