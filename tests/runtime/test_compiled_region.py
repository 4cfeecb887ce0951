"""Fused regions compiled by themselves: for how operands lie, and for numbers."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from partita.compiler.errors import CompilationFailed
from partita.compiler.ir.program import NodeInfo, Phase, set_info
from partita.runtime import compiled_region
from partita.runtime.compiled_region import CompiledRegion

ADD, MUL = torch.ops.aten.add.Tensor, torch.ops.aten.mul.Tensor


def region() -> fx.GraphModule:
    """Two operands and a number: a sum, and its product with a power of the number."""
    graph = fx.Graph()
    one, other, number = (graph.placeholder(f"input_{i}") for i in range(3))
    total = graph.call_function(ADD, (one, other))
    power = graph.call_function(pow, (number, 2))
    graph.output((total, graph.call_function(MUL, (total, power))))
    return fx.GraphModule(torch.nn.Module(), graph)


def check(compiled: CompiledRegion, *given: torch.Tensor | int) -> None:
    want = region()(*given)
    for made, wanted in zip(compiled(*given), want, strict=True):
        assert made is not None
        torch.testing.assert_close(made, wanted)


def test_it_computes_what_its_module_does_however_operands_lie() -> None:
    compiled = CompiledRegion(region())
    x, y = torch.randn(6, 10), torch.randn(10, 6)
    for one, other in ((x, x + 1), (x, y.t()), (y.t(), x), (x[:1].expand(6, 10), x)):
        check(compiled, one, other, 3)


def test_a_number_is_written_into_the_code() -> None:
    compiled = CompiledRegion(region())
    x = torch.randn(4, 4)
    for number in (2, 5, 2):
        check(compiled, x, x, number)


def test_code_is_made_once_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    compile_graph = compiled_region.compile_graph

    def counted(*args: object) -> object:
        made.append(1)
        return compile_graph(*args)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(compiled_region, "compile_graph", counted)
    compiled = CompiledRegion(region())
    x = torch.randn(8, 4)
    for given in ((x, x, 1), (x, x + 1, 1), (x.clone(), x, 1)):
        check(compiled, *given)
    assert len(made) == 1
    check(compiled, x, torch.randn(4, 8).t(), 1)
    check(compiled, x, x, 2)
    assert len(made) == 3


def test_what_cannot_be_compiled_says_which_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> object:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(compiled_region, "compile_graph", fail)
    module = region()
    total = module.graph.find_nodes(op="call_function", target=ADD)[0]
    set_info(total, NodeInfo("h.0/add.Tensor/0", Phase.FORWARD, (None,)))
    x = torch.randn(2, 2)
    with pytest.raises(CompilationFailed, match=r"h\.0/add\.Tensor/0.*eager.*no comp"):
        CompiledRegion(module)(x, x, 1)
