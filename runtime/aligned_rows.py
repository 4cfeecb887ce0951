"""Begin the rows of large products on a CPU where a vector may be written at once.

A matrix in single precision whose rows are no whole number of vectors long, as the
logits of 50,257 tokens are, takes MKL a third longer to write: 512 x 256 by 256 x
25,001 152 ms, and 93 ms with a gap behind each row, so that all begin alike (one thread
of an EPYC, AVX-512; half and double precision gain nothing). Of a program that Inductor
compiles, the results of such products have these gaps, and what it computes from them.
What leaves the program, is sent or goes to ops that are not torch's has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from partita.compiler.capture.schemas import may_share_memory
from partita.compiler.capture.torch_private import FakeMode

aten, partita = torch.ops.aten, torch.ops.partita

_BYTES = 32  # that rows begin at a multiple of
_LEAST_BYTES = 2**20  # of a result that is worth another call
_SHORT = 1024  # numbers of a row that Inductor leaves as it is


@torch.library.custom_op("partita::aligned_mm", mutates_args=())
def aligned_mm(x: Tensor, y: Tensor) -> Tensor:
    """Return the product of two matrices, with gaps between its rows."""
    return torch.mm(x, y, out=_with_gaps(x, y))


@torch.library.custom_op("partita::aligned_addmm", mutates_args=())
def aligned_addmm(bias: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the product of two matrices and a bias, with gaps between its rows."""
    return torch.addmm(bias, x, y, out=_with_gaps(x, y))


@aligned_mm.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    return _with_gaps(x, y)


@aligned_addmm.register_fake
def _(bias: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return _with_gaps(x, y)


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
    with torch.no_grad():
        FakeTensorProp(module, mode).propagate_dont_convert_inputs(*inputs)
    found = [node for node in nodes if node.target in _ALIGNED and _gains(node)]
    found = [node for node in found if _may_have_gaps(node)]
    if not found:
        return {}
    for node in found:
        node.target = _ALIGNED[node.target]
    module.recompile()
    return {
        "disable_padding_cpu": False,
        "padding_alignment_bytes": _BYTES,
        "padding_stride_threshold": _SHORT,
    }


def _gains(node: fx.Node) -> bool:
    made: Tensor = node.meta["val"]
    if node.kwargs or made.dtype is not torch.float32 or made.shape[1] <= _SHORT:
        return False
    is_aligned = made.shape[1] * made.element_size() % _BYTES == 0
    return not is_aligned and made.nbytes >= _LEAST_BYTES


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


def _with_gaps(x: Tensor, y: Tensor) -> Tensor:
    columns = y.shape[1]
    numbers = _BYTES // x.element_size()
    stride = -(-columns // numbers) * numbers
    return x.new_empty_strided((x.shape[0], columns), (stride, 1))
