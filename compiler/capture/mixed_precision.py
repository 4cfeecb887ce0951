"""Mixed precision: a model captured as ``torch.autocast`` runs it.

Parameters stay as they are, and so do their gradients; products and convolutions take
16-bit copies of what they are given, and the ops that need the range or the digits are
given float32. Which ops those are torch decides, op by op as it traces: the program has
the casts of ``torch.autocast("cpu", dtype)`` and, since the forward is traced under it
and the backward outside of it, the gradients of an eager loop that does the same.

Equal copies of one tensor are one, as autocast keeps those of parameters. The gradients
of its uses are added up in float32, each cast by itself, where autocast adds those of a
parameter in 16 bits.

It is the list for the CPU on every machine, since capture knows no device: softmax,
norms and sums take 16 bits if they are given them, where torch's list for CUDA has
float32. Their kernels add up in float32 on both.

Source: torch's "Automatic Mixed Precision", autocast op reference; the lists are in
aten/src/ATen/autocast_mode.h and autocast_mode.cpp.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import MappingProxyType
from typing import Any

import torch
from torch import fx

from partita.compiler.capture.constants import print_constants
from partita.compiler.ir.program import Program, Value, operands

PRECISIONS: Mapping[str, torch.dtype] = MappingProxyType(
    {"bfloat16": torch.bfloat16, "float16": torch.float16}
)
"""What products may compute in, by the name that options and plans have for it."""


_CAST = torch.ops.aten._to_copy.default


def autocasting(
    precision: str | None, device: str = "cpu"
) -> AbstractContextManager[Any]:
    """Return a block in which a model's forward runs in ``precision``.

    With ``None`` it runs as it does by itself.
    """
    if precision is None:
        return nullcontext()
    return torch.autocast(device, PRECISIONS[precision], cache_enabled=True)


def cast_inside(module: fx.GraphModule, precision: str) -> None:
    """Let an exported forward autocast whenever it is run, in place.

    Around a trace of forward and backward it would do so for the backward, too.
    """
    first = next(node for node in module.graph.nodes if node.op != "placeholder")
    with module.graph.inserting_before(first):
        mode = module.graph.call_function(_enter, (precision,))
    with module.graph.inserting_before(module.graph.output_node()):
        module.graph.call_function(_leave, (mode,))
    module.recompile()


@contextmanager
def as_before(device: str = "cpu") -> Generator[None]:
    """Leave autocast as it was, also where what autocasts inside fails halfway.

    Torch 2.11 does not see to that itself, and no torch to how deep it is nested: it
    lets go of its copies of parameters at the outermost end alone.
    """
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    is_enabled = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device)
    is_cached = torch.is_autocast_cache_enabled()
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, is_enabled)
        torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(is_cached)
        while torch.autocast_decrement_nesting() >= depth:
            pass
        if torch.autocast_increment_nesting() == 0:
            torch.clear_autocast_cache()


def _enter(precision: str) -> AbstractContextManager[Any]:
    mode = autocasting(precision)
    mode.__enter__()
    return mode


def _leave(mode: AbstractContextManager[Any]) -> None:
    mode.__exit__(None, None, None)


def share_copies(program: Program) -> Program:
    """Return ``program`` with equal casts of a tensor made once."""
    program = program.copy()
    made: dict[tuple[Value, tuple[str, ...]], fx.Node] = {}
    for node in program.graph.find_nodes(op="call_function", target=_CAST):
        (value,) = operands(node)
        first = made.setdefault((value, print_constants(node)), node)
        if first is not node:
            node.replace_all_uses_with(first)
            program.graph.erase_node(node)
    program.graph_module.recompile()
    return program
