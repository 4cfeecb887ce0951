"""What Partita uses of torch that is private and for compiling, beside torch_private.

Inductor is handed a graph that has its backward already, past dynamo and autograd.
What it makes is kept on disk, in the folder ``TORCHINDUCTOR_CACHE_DIR`` names, under a
hash of the graph, the types of its inputs, the options and the versions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._C import _distributed_c10d
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

Code = Callable[..., Sequence[torch.Tensor | None]]
"""What a graph was compiled to; called as the graph is."""

FakeMode = FakeTensorMode
"""A mode in which tensors have no values."""


def static_fake_mode() -> FakeMode:
    """Return a mode in which tensors have types and strides, known ones, no values."""
    return FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True)


def compile_graph(
    module: fx.GraphModule,
    inputs: Sequence[torch.Tensor],
    mode: FakeMode,
    options: Mapping[str, Any],
) -> Code:
    """Return code for a graph of aten ops and functional collectives.

    Args:
        module: it may write to its inputs; what is left of it is of no use.
        inputs: of ``mode``; the code is right for their shapes and strides alone.
        mode: from ``static_fake_mode``.
        options: of Inductor, by the names of its ``config``.
    """
    # Here, since Inductor takes a second to import and most runs do without.
    from torch._inductor.compile_fx import compile_fx

    with torch.no_grad(), tracing(TracingContext(mode)):
        code = compile_fx(module, list(inputs), config_patches=dict(options))
    assert callable(code)
    return code


def name_group(name: str, group: torch.distributed.ProcessGroup) -> None:
    """Let functional collectives find a process group by another name too."""
    vars(_distributed_c10d)["_register_process_group"](name, group)


def ranks_of_name(name: str) -> tuple[int, ...]:
    """Return the global ranks of what a name stands for; none where it is free."""
    try:
        group = vars(_distributed_c10d)["_resolve_process_group"](name)
    except RuntimeError:
        return ()
    return tuple(torch.distributed.get_process_group_ranks(group))
