"""Ops make their tensors where the run is, whatever device capture saw."""

from typing import Any

import pytest
import torch
from torch import fx, nn

from partita.compiler.capture.schemas import makes_tensors
from partita.compiler.ir.on_device import on_device

aten = torch.ops.aten
META = torch.device("meta")

MAKERS: list[tuple[Any, tuple[Any, ...]]] = [
    (aten.ones.default, ([2],)),
    (aten.full.default, ([2], 1.5)),
    (aten.arange.start, (0, 4)),
    (aten.scalar_tensor.default, (1.0,)),
    (aten.empty.memory_format, ([2],)),
]


def graph_of(target: Any, args: tuple[Any, ...], **kwargs: Any) -> fx.Graph:
    graph = fx.Graph()
    graph.output((graph.call_function(target, args, kwargs),))
    return graph


@pytest.mark.parametrize(("target", "args"), MAKERS)
def test_what_makes_a_tensor_makes_it_there(target: Any, args: tuple[Any, ...]) -> None:
    cpu = torch.device("cpu")
    for graph in (graph_of(target, args), graph_of(target, args, device=cpu)):
        module = fx.GraphModule(nn.Module(), graph)
        (made,) = on_device(module, META)()
        assert made.device == META
        (made,) = module()
        assert made.device == cpu


def test_regions_make_theirs_there_too() -> None:
    region = fx.GraphModule(nn.Module(), graph_of(aten.ones.default, ([2],)))
    root = nn.Module()
    root.add_module("fused_0", region)
    graph = fx.Graph()
    graph.output(graph.call_module("fused_0"))
    module = fx.GraphModule(root, graph)
    assert on_device(module, META)()[0].device == META
    assert module()[0].device == torch.device("cpu")


def test_what_is_given_a_tensor_follows_it() -> None:
    for target in (aten.new_zeros.default, aten.full_like.default, aten.add.Tensor):
        assert not makes_tensors(target)
    assert not makes_tensors(torch.sum)
