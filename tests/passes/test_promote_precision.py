"""Every float dtype of a rank's program becomes float64."""

from __future__ import annotations

import pytest
import torch
from tests.compiler.ir.small_programs import Builder

from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import InputKind, OutputKind, info
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.rules.table import default_rules
from partita.passes.localize import localize
from partita.passes.promote_precision import (
    promote_arguments,
    promote_dtype,
    promote_precision,
    promote_tensor,
)
from partita.runtime.virtual import run_all

aten = torch.ops.aten


def casting() -> LocalProgram:
    b = Builder(Mesh(tp=1))
    x = b.enter("x", "f32[4]", "B")
    c = b.enter("c", "bf16[4]", "B", InputKind.CONSTANT)
    low = b.call("to/0", aten._to_copy.default, (x,), "bf16[4]", "B -> B")
    low.kwargs = {"dtype": torch.bfloat16}
    both = b.call("add/0", aten.add.Tensor, (low, c), "bf16[4]", "B, B -> B")
    count = b.call("to/1", aten._to_copy.default, (both,), "i64[4]", "B -> B")
    count.kwargs = {"dtype": torch.int64}
    b.leave(OutputKind.OUTPUT, "y", both)
    b.leave(OutputKind.OUTPUT, "n", count)
    program = b.program()
    program.constants["c"] = torch.full((4,), 1.0, dtype=torch.bfloat16)
    return localize(program, (0,), default_rules, {})


def test_before_and_after() -> None:
    local = casting()
    (promoted,) = promote_precision([local])
    dtypes = [
        [node.kwargs["dtype"] for node in p.graph_module.graph.nodes if node.kwargs]
        for p in (local, promoted)
    ]
    assert dtypes == [
        [torch.bfloat16, torch.int64],
        [torch.float64, torch.int64],
    ]
    types = [
        str(info(node).types[0])
        for node in promoted.graph_module.graph.nodes
        if node.op == "call_function"
    ]
    assert types == ["f64[4]", "f64[4]", "i64[4]"]
    assert promoted.input_types == (TensorType((4,), torch.float64),) * 2
    assert [str(t) for t in promoted.output_types] == ["f64[4]", "i64[4]"]
    assert promoted.constants["c"].dtype is torch.float64
    assert local.constants["c"].dtype is torch.bfloat16


def test_nothing_is_rounded_any_more() -> None:
    x = torch.full((4,), 1.0 + 2.0**-20)
    (low,) = run_all([casting()], [{(InputKind.INPUT, "x"): x}])
    (promoted,) = promote_precision([casting()])
    ((high, _),) = run_all([promoted], [{(InputKind.INPUT, "x"): x.double()}])
    assert low[0] is not None
    assert high is not None
    assert low[0].tolist() == [2.0] * 4
    assert high.tolist() == [2.0 + 2.0**-20] * 4


@pytest.mark.parametrize(
    ("dtype", "promoted"),
    [
        (torch.float16, torch.float64),
        (torch.float32, torch.float64),
        (torch.float64, torch.float64),
        (torch.complex64, torch.complex128),
        (torch.int32, torch.int32),
        (torch.bool, torch.bool),
    ],
)
def test_dtypes(dtype: torch.dtype, promoted: torch.dtype) -> None:
    assert promote_dtype(dtype) is promoted
    assert promote_tensor(torch.zeros(2, dtype=dtype)).dtype is promoted


def test_nested_arguments() -> None:
    found = promote_arguments((1, [torch.float32, None], {"dtype": torch.int8}))
    assert found == (1, [torch.float64, None], {"dtype": torch.int8})
