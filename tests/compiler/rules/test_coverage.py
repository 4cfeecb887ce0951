"""Every op of ATen's core set has a row, is rewritten by capture, or says why not."""

from collections.abc import Iterator
from typing import Any

import torch

from partita.compiler.capture.canonicalize import canonicalize
from partita.compiler.capture.decompositions import FROM_TORCH, OWN
from partita.compiler.capture.draws import draws_numbers
from partita.compiler.capture.schemas import writes_in_place
from partita.compiler.ir.program import (
    InputKind,
    InputRole,
    NodeInfo,
    OutputKind,
    OutputRole,
    Phase,
    Program,
    op_name,
    set_info,
)
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.rules.table import default_rules

SIZES_ARE_STATIC = "captured shapes are numbers, so that no op asks for a size"
SHAPE_OF_DATA = "its result's shape depends on data, which capture refuses"

# Ops of the core set without a row that capture does not rewrite either.
ARGUED = {
    "aten._local_scalar_dense.default": SHAPE_OF_DATA,
    "aten._native_batch_norm_legit.default": "writes its statistics in place; capture "
    "has the functional twin, which has a row",
    "aten._pdist_forward.default": "of pairs of rows, in the order of a triangle: no "
    "part of the rows gives a part of the result",
    "aten.adaptive_avg_pool1d.default": "made of the 2-d op, which has a row",
    "aten.atan2.out": "writes to an argument; the functional op has a row",
    "aten.avg_pool1d.default": "made of the 2-d op, which has a row",
    "aten.nonzero.default": SHAPE_OF_DATA,
    "aten.resize_.default": "writes in place",
    "aten.sym_is_contiguous.default": SIZES_ARE_STATIC,
    "aten.sym_numel.default": SIZES_ARE_STATIC,
    "aten.sym_size.int": SIZES_ARE_STATIC,
    "aten.sym_storage_offset.default": SIZES_ARE_STATIC,
    "aten.sym_stride.int": SIZES_ARE_STATIC,
    "aten.var.dim": "made of var.correction, which capture takes apart",
}


def core_ops() -> Iterator[Any]:
    for full_name in torch._C._dispatch_get_all_op_names():  # pyright: ignore[reportPrivateUsage]
        space, _, name = full_name.partition("::")
        if space == "aten":
            packet, _, overload = name.partition(".")
            op = getattr(getattr(torch.ops.aten, packet), overload or "default")
            if torch.Tag.core in op.tags:
                yield op


def is_taken_apart(op: Any) -> bool:
    return op in OWN or op.overloadpacket in FROM_TORCH


def is_rewritten(op: Any) -> bool:
    """Whether canonical programs have another op in its place."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    type_ = TensorType((4, 1), torch.float32)
    set_info(x, NodeInfo("x", Phase.FORWARD, (type_,)))
    call = graph.call_function(op, (x, 1))
    set_info(call, NodeInfo("call", Phase.FORWARD, (type_,)))
    graph.output((call,))
    program = Program(
        torch.fx.GraphModule({}, graph),
        (InputRole(InputKind.INPUT, "x"),),
        (OutputRole(OutputKind.OUTPUT, "y"),),
    )
    return str(op) not in map(op_name, canonicalize(program).calls())


def test_every_core_op_is_accounted_for() -> None:
    ops = {str(op): op for op in core_ops()}
    without_row = {name for name in ops if default_rules.get(name) is None}

    unexplained = {
        name
        for name in without_row
        if not is_taken_apart(ops[name])
        and not draws_numbers(ops[name])
        and not is_rewritten(ops[name])
    }

    assert len(ops) > 180
    assert unexplained == set(ARGUED)


def test_what_is_argued_to_write_does() -> None:
    ops = {str(op): op for op in core_ops()}

    for name, reason in ARGUED.items():
        assert writes_in_place(ops[name]) == ("writes" in reason), name
