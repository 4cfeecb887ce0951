"""The ops that a calibration times: they run, and plans know them by these names."""

from __future__ import annotations

import pytest
import torch

from partita.compiler.rules.table import default_rules
from partita.runtime.calibrate import effort
from partita.runtime.sampled_ops import SampledOp, sampled_ops, touched_bytes

ROWS, COLUMNS = 256, 256
CALLS = {op.name: op for op in sampled_ops(ROWS, COLUMNS, torch.device("cpu"))}


@pytest.mark.parametrize("op", CALLS.values(), ids=lambda op: op.name)
def test_every_op_runs_and_has_a_row(op: SampledOp) -> None:
    assert default_rules.get(op.name) is not None
    num_bytes = touched_bytes(op, op())
    assert num_bytes >= 2 * 4 * ROWS  # at the least a number of each row, in and out


@pytest.mark.parametrize(
    ("name", "tensors"),
    [
        ("aten.tanh.default", 2),
        ("aten.div.Tensor", 3),
        ("aten.gelu_backward.default", 3),
    ],
)
def test_bytes_are_those_of_all_operands_and_results(name: str, tensors: int) -> None:
    op = CALLS[name]
    sizes = [x.numel() for x in op.args if isinstance(x, torch.Tensor)]
    assert touched_bytes(op, op()) == 4 * tensors * sizes[0]


def test_attention_is_counted_by_its_products_half_of_each_if_causal() -> None:
    op = CALLS["partita.attention.default"]
    calls = [(args[0].shape, args[4]) for args in op.args]
    assert [causal for _, causal in calls] == [False, True]
    batch, heads, length, dim = calls[0][0]
    product = 2 * batch * heads * length * length * dim
    assert op.flops == 2 * product + product
    assert CALLS["partita.attention_backward.default"].flops == 2.5 * op.flops


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_quick_measurement_is_a_part_of_a_whole_one(kind: str) -> None:
    quick, whole = effort(kind, True), effort(kind, False)
    assert quick.rounds < whole.rounds
    assert set(quick.sizes) < set(whole.sizes)
    assert set(quick.memory_bytes) < set(whole.memory_bytes)
    assert set(quick.payload_bytes) < set(whole.payload_bytes)
