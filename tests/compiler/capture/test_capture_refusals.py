"""What cannot be captured is refused, and the message names the user's line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.compiler.capture import small_models as small
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from partita.compiler.capture.capture import capture
from partita.compiler.errors import CaptureFailed


class Branching(small.Scale):
    def forward(self, x: Tensor) -> Tensor:
        y = (x * self.w).sum()
        if y > 0:  # HERE
            return y
        return -y


class Counting(small.Scale):
    def forward(self, x: Tensor) -> Tensor:
        return (x * self.w)[: int(x.sum().item())].sum()  # HERE


class Finding(small.Scale):
    def forward(self, x: Tensor) -> Tensor:
        return (x * self.w)[x.nonzero()].sum()  # HERE


class Mistaken(small.Scale):
    def forward(self, x: Tensor) -> Tensor:
        return (x * self.w) @ torch.ones(5)  # HERE


class Leaving(small.Scale):
    def forward(self, x: Tensor) -> Tensor:
        raise SystemExit(0)  # HERE


class Packing(small.Scale):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(1, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        lengths = x.long().sum(1)
        whole = (x * self.w)[..., None]
        packed = pack_padded_sequence(whole, lengths, True, False)  # HERE
        return self.layer(packed)[1].sum()


class Picking(small.Scale):
    def forward(self, x: Tensor) -> Tensor:
        return (x * self.w)[x > 0].mean()  # HERE


def bare(model: nn.Module) -> nn.Module:
    return model


@pytest.mark.parametrize("kind", [Branching, Mistaken])
def test_a_failure_says_nothing_but_its_error(
    kind: type[small.Scale], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CaptureFailed):
        capture(kind(), (torch.ones(2, 4),), {})
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "kind", [Branching, Counting, Finding, Mistaken, Leaving, Packing, Picking]
)
@pytest.mark.parametrize("wrap", [bare, small.Around, nn.Sequential])
def test_message_names_the_users_line(kind: type[small.Scale], wrap: Any) -> None:
    model = wrap(kind())
    with pytest.raises(CaptureFailed) as caught:
        capture(model, (small.batch(),), {})
    message = str(caught.value)
    what = f"{small.line_of(kind)}: cannot capture {type(model).__name__}: "
    assert message.startswith(what)
    assert "\n" not in message


class Scaled(torch.autograd.Function):
    """Is given a module, whose parameter its backward finds for itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: nn.Linear) -> Tensor:
        ctx.layer = layer
        return layer(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] @ ctx.layer.weight, None


class Reversible(small.Scale):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return Scaled.apply(x * self.w, self.layer).sum()


class Itemized(small.Scale):
    def forward(self, x: Tensor) -> Tensor:
        return (x * self.w).sum() * x.amax().item()


class Selecting(small.Scale):
    def forward(self, x: Tensor) -> Tensor:
        return (x * self.w)[x > 0].sum()


class Routed(small.Scale):
    """Has experts for the rows that are routed to them, and a mask if it is run."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(4, 2)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None and not torch.compiler.is_compiling():
            mask = torch.ones(len(x))
        return self.routed(x * self.w * mask[:, None])  # type: ignore[index]

    def routed(self, x: Tensor) -> Tensor:
        chosen = self.router.to(x.dtype)(x).argmax(1)
        out = torch.zeros_like(x)
        for at, expert in enumerate(self.experts):
            (rows,) = torch.where(chosen == at)  # HERE
            out[rows] = expert(x[rows])
        return out.sum()


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of module.to
@pytest.mark.parametrize("given", [(), (torch.ones(8),)])
def test_what_stands_in_the_way_of_a_run_is_told(given: tuple[Tensor, ...]) -> None:
    with pytest.raises(CaptureFailed) as caught:
        capture(Routed(), (small.batch(), *given), {})
    message = str(caught.value)
    assert message.startswith(f"{small.line_of(Routed)}: cannot capture Routed: ")
    assert "a shape depends on values" in message
    assert "as an expert that runs on all rows does" in message


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Reversible, "uses a tensor that the function was not given"),
        (Itemized, "a number is read off a tensor's values"),
        (Branching, "by a tensor's values; compute both and take torch.where"),
        (Selecting, "a shape depends on values, as those of x.mask."),
        (
            Selecting,
            "take torch.where; in a loss, .* its ignore_index",
        ),
        (
            Packing,
            "give the layer the padded batch, and take torch.where",
        ),
    ],
)
def test_message_says_what_no_graph_can_show(
    kind: type[small.Scale], told: str
) -> None:
    with pytest.raises(CaptureFailed, match=told):
        capture(kind(), (small.batch(),), {})


def test_failing_loss_function_is_named_by_its_line() -> None:
    def loss(outputs: Any) -> Tensor:
        return outputs.nothing

    with pytest.raises(CaptureFailed) as caught:
        capture(nn.Linear(4, 4), (small.batch(),), {}, loss=loss)
    line = loss.__code__.co_firstlineno + 1
    assert str(caught.value) == (
        f"{__file__}:{line}: cannot capture Linear: 'FakeTensor' object has no "
        "attribute 'nothing' (AttributeError)"
    )


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(CaptureFailed) as caught:
        capture(small.Scale(), (small.batch(),), {"y": small.batch()})
    assert str(caught.value) == (
        "cannot capture Scale: Scale.forward() got an unexpected keyword argument 'y' "
        "(TypeError)"
    )


class Untrained(small.Scale):
    def forward(self, x: Tensor) -> Tensor:
        return (x * self.w.detach()).sum()


@pytest.mark.parametrize("kind", [Untrained, small.Scale])
def test_loss_without_a_trained_parameter_is_refused(kind: type[small.Scale]) -> None:
    model = kind().requires_grad_(kind is Untrained)
    with pytest.raises(CaptureFailed) as caught:
        capture(model, (small.batch(),), {})
    assert str(caught.value) == (
        f"{kind.__name__}: the loss depends on no parameter that requires a gradient; "
        "train one, or give Options(train=False) for inference"
    )
    assert capture(model, (small.batch(),), {}, train=False).program.outputs


class Pair(Tensor):
    """Says of itself that it is made of others."""

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return [], None

    @staticmethod
    def __tensor_unflatten__(*made_of: Any) -> Tensor:
        raise NotImplementedError


def test_tensors_that_are_made_of_others_are_named() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].bias = nn.Parameter(torch.ones(4).as_subclass(Pair))
    with pytest.raises(CaptureFailed, match=r"^'0\.bias' is a Pair, which is made of"):
        capture(model, (small.batch(),), {}, loss=torch.sum)


def look_at(_: Tensor) -> None:
    """Be called."""


@pytest.mark.parametrize(
    "register", [Tensor.register_hook, Tensor.register_post_accumulate_grad_hook]
)
def test_hooks_that_a_program_would_not_call_are_named(
    register: Callable[..., Any],
) -> None:
    model = small.Scale()
    handle = register(model.w, look_at)
    with pytest.raises(CaptureFailed, match=r"^'w' has a hook on its gradient, which"):
        capture(model, (small.batch(),), {})
    handle.remove()
    assert capture(model, (small.batch(),), {}).program.outputs


class Sparse(small.Scale):
    """Passes messages along the edges that it keeps, or is given."""

    def __init__(self, edges: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("edges", edges)

    def forward(self, x: Tensor, edges: Tensor | None = None) -> Tensor:
        return torch.sparse.mm(self.edges if edges is None else edges, x * self.w).sum()


def test_sparse_tensors_are_named() -> None:
    edges = torch.eye(len(small.batch())).to_sparse()
    with pytest.raises(CaptureFailed, match=r"^input 'edges' is sparse_coo, of which"):
        capture(Sparse(), (small.batch(), edges), {})
    with pytest.raises(CaptureFailed, match=r"^'edges' is sparse_coo, of which"):
        capture(Sparse(edges), (small.batch(),), {})
    model = Sparse()
    del model.edges
    model.edges = edges
    with pytest.raises(CaptureFailed, match="a sparse tensor is used, of which"):
        capture(model, (small.batch(),), {})
