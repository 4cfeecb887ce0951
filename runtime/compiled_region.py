"""A fused region, compiled by Inductor when it is first called.

``torch.compile`` would look with every call whether all is as it was when it compiled,
which takes some 20 us where the region takes 5. Types and shapes of what a region is
given are those of the program, and never others. How it lies in memory may change, and
so may a number: for each of these there is code of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import fx

from partita.compiler.capture.torch_private import (
    compile_graph,
    compiled_folder,
    static_fake_mode,
)
from partita.compiler.errors import CompilationFailed
from partita.compiler.ir.program import has_info, info
from partita.runtime.flat_graph import with_numbers
from partita.runtime.vector_trials import noted_trials

_Code = Callable[..., Sequence[torch.Tensor | None]]


class CompiledRegion:
    """What a region computes, as its module is called.

    Args:
        module: a graph of ops on tensors and numbers.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        self._module = module
        self._code: dict[tuple[object, ...], _Code] = {}

    def __call__(self, *given: torch.Tensor | int) -> Sequence[torch.Tensor | None]:
        """Return what the region makes of what it is given.

        Raises:
            CompilationFailed: when Inductor cannot compile it.
        """
        known = tuple([x.stride() if isinstance(x, torch.Tensor) else x for x in given])
        code = self._code.get(known)
        if code is None:
            code = self._code[known] = _compiled(self._module, given)
        return code(*given)


def _compiled(module: fx.GraphModule, given: Sequence[torch.Tensor | int]) -> _Code:
    """Return code for what lies in memory as this does, and for these numbers."""
    mode = static_fake_mode()
    tensors = {at: x for at, x in enumerate(given) if isinstance(x, torch.Tensor)}
    numbers = {at: x for at, x in enumerate(given) if not isinstance(x, torch.Tensor)}
    graph = with_numbers(module, numbers)
    with mode:
        inputs = [
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
            for x in tensors.values()
        ]
    try:
        with noted_trials(compiled_folder() / "partita"):
            code = compile_graph(graph, inputs, mode, {})
    except Exception as error:
        calls = [info(node).key for node in module.graph.nodes if has_info(node)]
        raise CompilationFailed(
            f"cannot compile the fused region {', '.join(calls)}; choose "
            f"compilation='eager': {type(error).__name__}: {error}"
        ) from error
    if not numbers:
        return code
    return lambda *values: code(*(values[at] for at in tensors))
