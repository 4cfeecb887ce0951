"""Ops of the rules' own written out for a compiler: the same values, and no calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from tests.compiler.rules import own_samples
from torch import Tensor, fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from partita.compiler.capture.torch_private import pytree, static_fake_mode
from partita.compiler.rules.written_out import WRITTEN_OUT, write_out

aten, partita = torch.ops.aten, torch.ops.partita


def test_what_ops_are_written_as_computes_the_same() -> None:
    compared = Counter[str]()
    every = {str(op): function for op, function in WRITTEN_OUT.items()}
    written = {op: own for op, own in every.items() if op.startswith("partita")}
    for group in own_samples.GROUPS:
        for sample in group():
            function = written.get(sample.op)
            found = NotImplemented if function is None else function(*sample.args)
            if found is NotImplemented:
                continue
            compared[sample.op] += 1
            op = next(op for op in WRITTEN_OUT if str(op) == sample.op)
            pairs = zip(
                pytree.tree_leaves(found),
                pytree.tree_leaves(op(*sample.args)),
                strict=True,
            )
            for own, wanted in pairs:
                torch.testing.assert_close(own, wanted)
    assert set(compared) == set(written)


def shard_of_loss(logits: Tensor, position: Tensor, labels: Tensor) -> list[Tensor]:
    """Compute as one of the ranks that share a vocabulary does, and attend."""
    zeros, ones = torch.zeros_like(logits), -torch.ones_like(logits[:, :1])
    args = position, 1, 8, labels
    hot = partita.scatter.default(zeros, *args, ones, False)
    picked = partita.gather.default(logits, *args)
    rows = partita.index.default(logits.t(), [position], [0], [8], [labels[:, 0]])
    heads = logits.view(1, 2, 2, 4)
    out, _ = partita.attention.default(heads, heads, heads, None, True, 0.5)
    return [hot * 2 + logits, picked + 1, rows * 2, out + 1]


def ops_of(graph: fx.Graph) -> set[str]:
    return {str(node.target) for node in graph.nodes if node.op == "call_function"}


def written_for(graph: fx.GraphModule, given: Sequence[Tensor]) -> fx.GraphModule:
    """Write a graph out for tensors like those that are given."""
    mode = static_fake_mode()
    with mode:
        inputs = [torch.empty(x.shape, dtype=x.dtype) for x in given]
    return write_out(graph, inputs, mode)


def test_a_graph_is_written_out_for_the_shapes_that_enter_it() -> None:
    given = (
        torch.randn(4, 4),
        torch.tensor([4, 5, 6, 7]),
        torch.tensor([[3], [4], [-1], [7]]),
    )
    graph = make_fx(shard_of_loss, tracing_mode="fake")(*given)
    written = written_for(graph, given)
    assert "partita.scatter.default" in ops_of(graph.graph)
    assert not {op for op in ops_of(written.graph) if op.startswith("partita")}
    torch.testing.assert_close(written(*given), shard_of_loss(*given))


def attended(x: Tensor) -> Tensor:
    """Attend and go back, with heads inside of the sequence, as products make them."""
    heads = x.view(2, 6, 2, 8).transpose(1, 2)
    out, lse = partita.attention.default(heads, heads, heads, None, True, 0.5)
    args = heads, heads, heads, heads, None, out, lse, True, 0.5
    grads = partita.attention_backward.default(*args)
    return out + sum(grads)


def test_attention_is_given_and_gives_tensors_as_they_lie() -> None:
    given = (torch.randn(2, 6, 16),)
    graph = make_fx(attended, tracing_mode="fake")(*given)
    with FakeTensorMode():
        written = make_fx(written_for(graph, given))(torch.empty(given[0].shape))

    assert not written.graph.find_nodes(op="call_function", target=aten.clone.default)
    torch.testing.assert_close(written(*given), attended(*given))


def test_what_is_put_several_times_in_a_row_stays_a_call() -> None:
    def several(x: Tensor, position: Tensor, index: Tensor) -> Tensor:
        return partita.scatter.default(x, position, 1, 8, index, x[:, :2], False)

    given = torch.randn(4, 4), torch.arange(4), torch.tensor([[3, 1]] * 4)
    graph = make_fx(several, tracing_mode="fake")(*given)
    written = written_for(graph, given)
    assert "partita.scatter.default" in ops_of(written.graph)
    torch.testing.assert_close(written(*given), several(*given))


def test_a_graph_without_such_ops_stays_as_it_is() -> None:
    graph = make_fx(torch.relu)(torch.ones(2))
    assert write_out(graph, [torch.ones(2)], static_fake_mode()) is graph
