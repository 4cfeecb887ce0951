"""A trace of what writes nowhere: the graph of AOTAutograd, given up at a write."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from tests.models import zoo
from torch import Tensor, nn

from partita.compiler.capture import direct, joint
from partita.compiler.capture.capture import Captured, capture
from partita.compiler.capture.pure import WritesFound
from partita.compiler.ir.program import InputKind, NodeInfo, info
from partita.compiler.ir.tensor_type import TensorType


class Halves(nn.Module):
    """A loss in 16 bits, a parameter that is frozen and one that no loss needs."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(4))
        self.line = nn.Linear(4, 4).to(torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        scaled = self.line((x * self.scale).to(torch.bfloat16))
        return scaled.square().mean(dtype=torch.bfloat16)


class Counting(nn.Module):
    """Counts its calls beside the trace."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        type(self).calls += 1
        return self.line(x).square().mean()


def _doubled(gradient: Tensor) -> Tensor:
    return gradient.clone().mul_(2)


class Writing(Counting):
    """Writes to what it is told to: a tensor that it makes, a buffer or a gradient."""

    def __init__(self, to: str) -> None:
        super().__init__()
        self.to_ = to
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.line(x)
        if self.to_ == "made":
            y = y * 1
            y[:, 1:] = 0
        elif self.to_ == "buffer":
            self.seen.add_(y.detach().sum(0))
        elif self.to_ == "buffer, unsaid":  # by the op's schema
            y = nn.functional.batch_norm(y, self.seen, self.seen + 1, training=True)
        else:
            y.register_hook(_doubled)
        return y.square().mean()


def facts(found: Captured) -> list[NodeInfo]:
    return [info(node) for node in found.program.calls()]


def by_aot(
    monkeypatch: pytest.MonkeyPatch, *called: Any, train: bool = True
) -> Captured:
    """Return the capture of a model whose trace is AOTAutograd's."""

    def refuse(*args: Any) -> None:
        raise WritesFound("not asked")

    with monkeypatch.context() as patched:
        patched.setattr(direct, "joint_without_writes", refuse)
        return capture(*called, train=train)


def alone(
    monkeypatch: pytest.MonkeyPatch, *called: Any, train: bool = True
) -> Captured:
    """Return the capture of a model that AOTAutograd must not see."""
    with monkeypatch.context() as patched:
        patched.setattr(joint, "export_joint", None)
        return capture(*called, train=train)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("name", ["gpt2", "llama", "vit", "encoder"])
def test_it_is_the_graph_of_aot(
    name: str, train: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = zoo.ZOO[name]()
    pure = alone(monkeypatch, *built, train=train)
    aot = by_aot(monkeypatch, *built, train=train)
    assert pure.fingerprint == aot.fingerprint
    assert facts(pure) == facts(aot)
    assert pure.program.inputs == aot.program.inputs
    assert pure.program.outputs == aot.program.outputs


def test_gradients_are_of_what_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    called = (Halves(), (torch.ones(2, 4),), {})
    pure, aot = alone(monkeypatch, *called), by_aot(monkeypatch, *called)
    assert facts(pure) == facts(aot)
    assert pure.program.outputs == aot.program.outputs
    (scale,) = [
        node
        for node, role in pure.program.placeholders()
        if role.kind is InputKind.LOSS_SCALE
    ]
    assert info(scale).types == (TensorType((), torch.bfloat16),)


def test_the_forward_is_called_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counting, "calls", 0)
    capture(Counting(), (torch.ones(2, 4),), {})
    assert Counting.calls == 1


@pytest.mark.parametrize("to", ["made", "buffer", "buffer, unsaid", "gradient"])
def test_a_write_ends_it(to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the trace that ended is left in the next one."""
    called = (Writing(to), (torch.ones(2, 4),), {})
    ended: list[str] = []

    def noting(*args: Any) -> Any:
        try:
            return joint.joint_without_writes(*args)
        except WritesFound as found:
            ended.append(str(found))
            raise

    with monkeypatch.context() as patched, warnings.catch_warnings():
        warnings.simplefilter("error")
        patched.setattr(direct, "joint_without_writes", noting)
        tried = capture(*called)
    assert len(ended) == 1
    assert ended[0].startswith("aten.")
    assert facts(tried) == facts(by_aot(monkeypatch, *called))


def test_random_numbers_are_drawn_after_it_as_before() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    state = torch.random.get_rng_state()
    capture(model, (torch.ones(2, 4),), {}, loss=torch.sum)
    assert torch.equal(torch.random.get_rng_state(), state)
