"""Models of a few lines, each with one trait that capture has to get right."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import Tensor, nn

from partita.compiler.capture.capture import Captured
from partita.compiler.capture.inputs import name_leaves
from partita.compiler.ir.program import InputKind, OutputKind


class Scale(nn.Module):
    """Multiplies by a parameter; what follows is up to the children of this class."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Any:
        return (x * self.w).sum()


def asserting(wrong: Tensor) -> str:
    """Check ``wrong`` as models do, where pytest writes no assert anew."""
    assert not wrong.any(), f"{wrong.shape} has wrong values"
    return "passed"


class Normed(nn.Module):
    """Batch norm, a frozen parameter, buffers, one unused layer; outputs nested."""

    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 6)
        self.bn = nn.BatchNorm1d(6)
        self.frozen = nn.Parameter(torch.ones(6), requires_grad=False)
        self.register_buffer("shift", torch.ones(6))
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> dict[str, Any]:
        y = self.bn(self.lin(x) * self.frozen) + self.shift
        return {"loss": y.square().mean(), "y": y, "nested": [y + 1, (y - 1,)]}


class Tied(nn.Module):
    """One table under two names, one buffer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.table.weight
        scale = torch.full((4,), 2.0)
        self.register_buffer("scale", scale)
        self.register_buffer("same_scale", scale)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.table(ids) * self.scale + self.same_scale
        return self.head(hidden).logsumexp(-1).mean()


class Round(torch.autograd.Function):
    """Rounds, and hands its gradient straight through."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return the nearest integers."""
        return x.round()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        """Return the gradient as it is."""
        return grads[0]


class Rounding(Tied):
    """A backward of its own, a tied table, attention, a buffer that changes."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, ids: Tensor) -> Tensor:
        if not torch.compiler.is_exporting() and int(ids.max()) > 100:
            raise ValueError("no such row")
        self.seen += 1
        x = Round.apply(3 * self.table(ids)).unsqueeze(1)
        y = nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        return self.head(y).logsumexp(-1).mean()


class Checking(Tied):
    """Asserts something of a value; export takes what pytest does not rewrite."""

    def forward(self, ids: Tensor) -> Tensor:
        assert ids.max().item() <= 100
        return super().forward(ids)


class Nested(nn.Module):
    """Takes a dict with a list in it, more tensors, constants and keywords."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))

    def forward(
        self,
        batch: dict[str, Any],
        *rest: Tensor,
        scale: float = 2.0,
        flip: bool = False,
        **named: Tensor,
    ) -> Tensor:
        x = batch["images"][1] + batch["text"] * named["mask"]
        for extra in rest:
            x = x + extra
        return ((-x if flip else x) * self.w * scale).sum()


class Chain(nn.Module):
    """Residual blocks by name, so that one can be put between others."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        blocks = {
            name: nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4)) for name in names
        }
        self.blocks = nn.ModuleDict(blocks)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks.values():
            x = x + block(x)
        return x.square().mean()


class Twice(nn.Module):
    """Calls one module twice."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.lin(torch.tanh(self.lin(x))).sum()


class Attending(nn.Module):
    """Causal attention of grouped heads; ``bias`` is learned where asked for."""

    def __init__(self, learned_bias: bool = False) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(8, 8), nn.Linear(8, 8)
        self.bias = nn.Parameter(torch.zeros(3, 3)) if learned_bias else None

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (4, 2)).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (2, 2, 2)).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(
            q, k, v, self.bias, is_causal=self.bias is None, enable_gqa=True
        )
        return y.square().mean()


def batch() -> Tensor:
    """Return ``f32[8, 4]``."""
    return torch.arange(32.0).reshape(8, 4).sin()


def line_of(model: type[nn.Module], marker: str = "# HERE") -> str:
    """Return ``file:line`` of the line of a class that has a marker."""
    lines, first = inspect.getsourcelines(model)
    (offset,) = [i for i, line in enumerate(lines) if marker in line]
    return f"{inspect.getsourcefile(model)}:{first + offset}"


def run_captured(
    captured: Captured, model: nn.Module, *args: Any, **kwargs: Any
) -> dict[str, Tensor]:
    """Run a captured program on a model's own values; name -> what leaves."""
    leaves = name_leaves(model, args, kwargs)
    values = {
        InputKind.PARAMETER: dict(model.named_parameters()),
        InputKind.BUFFER: dict(model.named_buffers()),
        InputKind.INPUT: leaves,
        InputKind.CONSTANT: captured.program.constants,
        InputKind.LOSS_SCALE: {"loss_scale": torch.ones(())},
    }
    fed = [values[role.kind][role.name] for role in captured.program.inputs]
    with torch.no_grad():
        found = captured.program.graph_module(*fed)
    return {
        f"{role.kind}:{role.name}": tensor
        for role, tensor in zip(captured.program.outputs, found, strict=True)
    }


def run_eager(
    model: nn.Module, *args: Any, **kwargs: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of a copy of ``model``, and gradients and buffers after it."""
    model = copy.deepcopy(model)
    returned = model(*args, **kwargs)
    loss = returned if isinstance(returned, Tensor) else returned["loss"]
    loss.backward()
    found = {
        f"{OutputKind.GRADIENT}:{name}": parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    buffers = {
        f"{OutputKind.MUTATED_BUFFER}:{name}": buffer
        for name, buffer in model.named_buffers()
    }
    return loss.detach(), found | buffers


class Around(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        return self.inner(x)


class Centred(nn.Module):
    """A bias in front of a norm: its gradient is zero but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 3, 3)
        self.norm = nn.InstanceNorm2d(8, affine=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the loss of images ``[batch, 3, height, width]``."""
        return self.up(self.norm(self.down(x)).relu()).square().mean()
