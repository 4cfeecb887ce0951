"""Leave gaps behind the rows of large products in programs that Inductor compiles.

Then each row begins at a vector (unaligned_products.py), and is faster to write, and to
read: Inductor leaves such gaps in what it computes of a product, too. What leaves the
program, is sent or goes to ops that are not torch's has none, and is made some columns
at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from partita.compiler.capture.schemas import may_share_memory
from partita.compiler.capture.torch_private import FakeMode
from partita.runtime.flat_graph import note_types
from partita.runtime.unaligned_products import (
    BY_COLUMNS,
    NUM_BYTES,
    SHORT,
    is_unaligned,
    with_gaps,
)

aten, partita = torch.ops.aten, torch.ops.partita


@torch.library.custom_op("partita::aligned_mm", mutates_args=())
def aligned_mm(x: Tensor, y: Tensor) -> Tensor:
    """Return the product of ``[rows, width]`` and ``[width, columns]``, with gaps."""
    return torch.mm(x, y, out=with_gaps(x, y.shape[1]))


@torch.library.custom_op("partita::aligned_addmm", mutates_args=())
def aligned_addmm(bias: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return such a product and a bias, with gaps between its rows."""
    return torch.addmm(bias, x, y, out=with_gaps(x, y.shape[1]))


@aligned_mm.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    return with_gaps(x, y.shape[1])


@aligned_addmm.register_fake
def _(bias: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return with_gaps(x, y.shape[1])


_RESHAPES = aten.view.default, aten.reshape.default, aten._unsafe_view.default

_ALIGNED: dict[Any, Any] = {
    aten.mm.default: partita.aligned_mm.default,
    aten.addmm.default: partita.aligned_addmm.default,
}


def align_rows(
    module: fx.GraphModule, inputs: Sequence[Tensor], mode: FakeMode
) -> dict[str, Any]:
    """Have large products of a graph leave gaps; return Inductor's options for others.

    With these it leaves gaps in what it computes, too. Without such products there are
    none.

    Args:
        module: a graph of ops on tensors alone; it is changed.
        inputs: of ``mode``.
        mode: in which tensors have no values.
    """
    nodes = module.graph.nodes
    is_on_cpu = all(x.device.type == "cpu" for x in inputs)
    if not (is_on_cpu and any(node.target in _ALIGNED for node in nodes)):
        return {}
    note_types(module, inputs, mode)
    found = [node for node in nodes if node.target in _ALIGNED and _is_unaligned(node)]
    gapped = [node for node in found if _may_have_gaps(node)]
    for node in found:
        node.target = (_ALIGNED if node in gapped else BY_COLUMNS)[node.target]
    module.recompile()
    if not gapped:
        return {}
    return {
        "disable_padding_cpu": False,
        "padding_alignment_bytes": NUM_BYTES,
        "padding_stride_threshold": SHORT,
    }


def _is_unaligned(node: fx.Node) -> bool:
    made: Tensor = node.meta["val"]
    return not node.kwargs and is_unaligned(made.shape, made.dtype)


def _may_have_gaps(node: fx.Node) -> bool:
    """Whether all that read a result are torch's own ops, which may find gaps in it."""
    return all(
        _keeps_rows(node, user) and _may_have_gaps(user)
        if user.target in _RESHAPES or may_share_memory(user.target)
        else getattr(user.target, "namespace", "") == "aten"
        for user in node.users
    )


def _keeps_rows(node: fx.Node, view: fx.Node) -> bool:
    """Whether a view can be made where there are gaps between rows."""
    if view.target in _RESHAPES:
        return node.meta["val"].shape[-1:] == view.meta["val"].shape[-1:]
    return view.target is not aten.as_strided.default
