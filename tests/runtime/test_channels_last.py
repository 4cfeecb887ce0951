"""Tensors between convolutions lie by channels, and what leaves as it did."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

import partita as pt
from partita.compiler.capture.torch_private import static_fake_mode
from partita.runtime.channels_last import by_channels

aten = torch.ops.aten
IMAGES, FIRST, SECOND = (2, 3, 8, 8), (80, 3, 3, 3), (80, 80, 3, 3)
_HOW = [1, 1], [1, 1], [1, 1], False, [0, 0], 1


def trained(images: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
    """Return what two convolutions make, and the gradients of their weights."""
    hidden = aten.convolution.default(images, first, None, *_HOW).relu()
    out = aten.convolution.default(hidden, second, None, *_HOW)
    back, of_second, _ = aten.convolution_backward.default(
        out, hidden, second, None, *_HOW, [True, True, False]
    )
    _, of_first, _ = aten.convolution_backward.default(
        back * (hidden > 0), images, first, None, *_HOW, [False, True, False]
    )
    return out, of_first, of_second


def laid_out(stays: tuple[bool, ...]) -> tuple[fx.GraphModule, tuple[Tensor, ...]]:
    """Return the graph of ``trained`` by channels, and what it makes."""
    mode = static_fake_mode()
    with mode:
        given = [torch.empty(shape) for shape in (IMAGES, FIRST, SECOND)]
        traced = make_fx(trained)(*given)
    found = by_channels(traced, given, mode, stays)
    with mode:
        return found, tuple(found(*given))


def test_only_what_enters_is_copied_between_convolutions() -> None:
    graph, made = laid_out((False, False, False))
    copies = graph.graph.find_nodes(op="call_function", target=aten.clone.default)
    copied = {node.all_input_nodes[0].name for node in copies}

    assert copied == {node.name for node in graph.graph.find_nodes(op="placeholder")}
    assert len(copies) == 3
    assert made[0].is_contiguous(memory_format=torch.channels_last)


def test_what_leaves_is_as_it_was_where_it_is_to_stay() -> None:
    _, (out, of_first, of_second) = laid_out((True, True, False))

    assert out.is_contiguous()
    assert of_first.is_contiguous()
    assert of_second.is_contiguous(memory_format=torch.channels_last)


def test_numbers_are_what_they_were() -> None:
    graph, _ = laid_out((True, True, True))
    given = [torch.randn(s).double() for s in (IMAGES, FIRST, SECOND)]

    torch.testing.assert_close(tuple(graph(*given)), trained(*given))


def test_ops_that_are_not_torchs_take_what_they_took() -> None:
    def summed(images: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        made = aten.convolution.default(images, weight, None, *_HOW)
        return (
            torch.ops.partita.attention.default(made, made, made, None, False, 1.0)[0],
        )

    mode = static_fake_mode()
    with mode:
        given = [torch.empty(shape) for shape in (IMAGES, FIRST)]
        traced = make_fx(summed)(*given)
    found = by_channels(traced, given, mode, [True])
    (own,) = (n for n in found.graph.nodes if "partita" in str(n.target))
    (taken,) = own.all_input_nodes

    assert taken.target is aten.clone.default
    assert taken.kwargs["memory_format"] is torch.contiguous_format


class Convolutions(nn.Module):
    """Two convolutions with norms, pooled."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 80, 3, padding=1)
        self.norm = nn.BatchNorm2d(80)
        self.second = nn.Conv2d(80, 80, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return a scalar of images ``[N, 3, H, W]``."""
        hidden = self.norm(self.first(x)).relu()
        return self.second(hidden).flatten(1).square().mean()


def test_a_model_compiled_as_a_whole_has_gradients_laid_out_as_its_weights() -> None:
    model, x = Convolutions(), torch.randn(4, 3, 8, 8)
    own = copy.deepcopy(model)
    plan = pt.plan(own, x, mesh=pt.Mesh(dp=1))
    program = pt.compile(own, plan, compilation="whole")

    loss = program.step(x)
    wanted = model(x)
    wanted.backward()

    torch.testing.assert_close(loss, wanted.detach())
    for name, parameter in program.named_parameters():
        original = model.get_parameter(name).grad
        assert parameter.grad is not None
        assert original is not None
        torch.testing.assert_close(parameter.grad, original, rtol=1e-4, atol=1e-5)
        assert parameter.grad.stride() == parameter.stride()
