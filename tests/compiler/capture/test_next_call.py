from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.compiler.capture import small_models as small
from torch import Tensor
from torch.nn.utils.weight_norm import weight_norm

from partita.compiler.capture.capture import capture
from partita.compiler.errors import CaptureFailed


class Counting(small.Scale):
    """Scales by the number of its calls."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return (x * self.w).sum() * self.calls


class CountingByTensor(small.Scale):
    """Makes a tensor of the number of its calls."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return (x * self.w * torch.tensor([float(self.calls)])).sum()


class Recurrent(small.Scale):
    """Adds what its last call computed."""

    last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        made = x * self.w
        made = made if self.last is None else made + self.last
        self.last = made.detach()
        return made.sum()


class Listing(small.Scale):
    """Goes by how long a list of its own is."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(len(self.seen))
        return (x * self.w).sum() * len(self.seen)


class SetUpByData(small.Scale):
    """Takes the mean of its first batch for the place of zero."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.is_set_up = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_set_up:
            self.mean = x.mean()
            self.is_set_up = True
        return ((x - self.mean) * self.w).sum()


class Hooking(small.Scale):
    """Has a hook from its second call on."""

    def forward(self, x: Tensor) -> Tensor:
        if not self._forward_pre_hooks:
            self.register_forward_pre_hook(lambda _, given: (2 * given[0],))
        return (x * self.w).sum()


class SetUpLate(small.Scale):
    """Registers the mean of its first batch."""

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "mean"):
            self.register_buffer("mean", x.mean().detach(), persistent=False)
        return ((x - self.get_buffer("mean")) * self.w).sum()


class Bare(small.Scale):
    """Has a buffer that is none at first."""

    mean: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", None)

    def forward(self, x: Tensor) -> Tensor:
        if self.mean is None:
            self.mean = x.mean().detach()
        return ((x - self.mean) * self.w).sum()


class Within(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Counting()])

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[0](x)


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (Counting, "'calls'"),
        (CountingByTensor, "'calls'"),
        (Recurrent, "'last'"),
        (Listing, "'seen'"),
        (SetUpByData, "'is_set_up'"),
        (Hooking, "'_forward_pre_hooks'"),
        (SetUpLate, "'mean'"),
        (Bare, "'mean'"),
        (Within, "'layers.0.calls'"),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("precision", [None, "bfloat16"])
def test_what_a_call_leaves_may_not_change_the_next(
    model: type[torch.nn.Module], named: str, device: str, precision: str | None
) -> None:
    made = model().to(device)
    before = {k: repr(value) for k, value in vars(made).items()}
    with pytest.raises(CaptureFailed, match=f"a call changes {named}, and its next"):
        capture(made, (torch.ones(8, 4),), {}, precision=precision)
    assert {k: repr(value) for k, value in vars(made).items()} == before


class Cached(small.Scale):
    """Keeps a table that it makes once for a size, of no input's values."""

    table: Tensor | None = None
    size = 0

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rates", torch.arange(4.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None or self.size != x.shape[0]:
            self.table = torch.outer(torch.arange(x.shape[0]), self.get_buffer("rates"))
            self.size = x.shape[0]
        return (x * self.w * self.table).sum()


class Logging(small.Scale):
    """Leaves what it made, how often, and of what shape, to be read from outside."""

    made: Any = None
    calls = 0
    scale: float = 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.made = {"x": [x * self.w]}
        self.calls += 1
        self.scale = x.shape[1] ** -0.5
        self.last_of: Any = getattr(self, "last_of", ())
        self.last_of = (*self.last_of, self.made["x"][0])
        return self.made["x"][0].sum() * self.scale


class Normed(torch.nn.Module):
    """Sets its weight before each call."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = weight_norm(torch.nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.lin(x).sum()


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm`:FutureWarning")
@pytest.mark.parametrize("model", [Cached, Logging, Normed])
@pytest.mark.parametrize("precision", [None, "bfloat16"])
def test_what_the_next_call_does_not_go_by_may_be_left(
    model: type[torch.nn.Module], precision: str | None
) -> None:
    made = model()
    captured = capture(made, (torch.ones(8, 4),), {}, precision=precision)
    kinds = {str(role.kind) for _, role in captured.program.results()}
    assert kinds == {"loss", "gradient"}
