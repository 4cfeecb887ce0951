"""What is asked of torch by names that are not public."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from partita.compiler.capture.torch_private import compile_graph, static_fake_mode


@torch.library.custom_op("partita_tests::double_", mutates_args=("x",))
def double_(x: Tensor) -> None:
    """Write to the operand, as a sum over ranks does."""
    x.mul_(2)


def written_to_in_between(x: Tensor, weight: Tensor, rows: Tensor) -> list[Tensor]:
    early = rows * rows[:1]
    product = torch.mm(x, weight)
    double_(product)
    return [early + product.view(8, 16, 32), early]


def test_what_reads_a_buffer_waits_for_its_last_writer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch._inductor.scheduler import SchedulerNode

    kind: Any = SchedulerNode
    original = kind.recompute_size_and_body
    anew: list[Any] = []

    def recompute(node: Any, *args: Any, **kwargs: Any) -> None:
        original(node, *args, **kwargs)
        anew.append(node)

    monkeypatch.setattr(kind, "recompute_size_and_body", recompute)
    given = torch.randn(128, 24), torch.randn(24, 32), torch.randn(8, 16, 32)
    graph = make_fx(written_to_in_between, tracing_mode="fake")(*given)
    mode = static_fake_mode()
    with mode:
        known = [torch.empty_strided(x.shape, x.stride()) for x in given]
    code = compile_graph(graph, known, mode, {"fx_graph_cache": False})
    assert any(node.mutation_renames for node in anew)
    for node in anew:
        assert node.read_writes == node.read_writes.rename(node.mutation_renames)
    for found, wanted in zip(code(*given), written_to_in_between(*given), strict=True):
        torch.testing.assert_close(found, wanted)
