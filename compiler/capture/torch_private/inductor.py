"""Code for a graph that has its backward already."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import torch
from torch import fx
from torch._guards import TracingContext, tracing

from partita.compiler.capture.torch_private.modes import FakeMode

Code = Callable[..., Sequence[torch.Tensor | None]]
"""What a graph was compiled to; called as the graph is."""


def compile_graph(
    module: fx.GraphModule,
    inputs: Sequence[torch.Tensor],
    mode: FakeMode,
    options: Mapping[str, Any],
) -> Code:
    """Return Inductor's code for a graph of aten ops and functional collectives.

    The graph has its backward already: it goes past dynamo and autograd. The code is
    kept on disk, in the folder ``TORCHINDUCTOR_CACHE_DIR`` names, under a hash of the
    graph, the types of its inputs, the options and the versions.

    Args:
        module: it may write to its inputs; what is left of it is of no use.
        inputs: of ``mode``; the code is right for their shapes and strides alone.
        mode: from ``static_fake_mode``.
        options: of Inductor, by the names of its ``config``.
    """
    # Here, since Inductor takes a second to import and most runs do without.
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.scheduler import SchedulerNode

    with torch.no_grad(), tracing(TracingContext(mode)), _renames_kept(SchedulerNode):
        code = compile_fx(module, list(inputs), config_patches=dict(options))
    assert callable(code)
    return code


def _renames_kept(kind: Any) -> AbstractContextManager[object]:
    """Have Inductor remember who wrote last to what a node of its schedule reads.

    Torch 2.13 forgets it where the loops of a node are computed anew that waits for
    nothing else: what reads a sum over ranks may then run in front of the sum.
    """
    original = kind.recompute_size_and_body

    def recompute(node: Any, *args: Any, **kwargs: Any) -> None:
        original(node, *args, **kwargs)
        node.set_read_writes(node.read_writes.rename(node.mutation_renames))

    return patch.object(kind, "recompute_size_and_body", recompute)
