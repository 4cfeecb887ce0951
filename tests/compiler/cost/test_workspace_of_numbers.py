"""What real kernels add short numbers up in, and compare numbers with."""

from __future__ import annotations

import pytest
import torch
from tests.compiler.cost.kernels import measured_and_predicted
from torch import Tensor

ops = torch.ops


def _added_up(x: Tensor, dims: list[int]) -> tuple[int, int]:
    op = ops.aten.sum.dim_IntList
    key, constants = "aten.sum.dim_IntList", f"1={dims}"
    return measured_and_predicted(key, lambda: op(x, dims), [x], constants)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    "dims",
    [[], [1], [-1], [0, 1], [0, 2], [1, 3], [-1, 0], [0, 1, 3], [0, 2, 3], [0, 1, 2]],
)
def test_sums_over_dims_side_by_side_and_apart(
    dims: list[int], dtype: torch.dtype
) -> None:
    x = torch.randn(16, 32, 64, 8, dtype=dtype)
    for given in (x, x.transpose(1, 2), x[:, :1].contiguous(), x.permute(3, 0, 2, 1)):
        found, want = _added_up(given, dims)
        assert found == want


@pytest.mark.parametrize("dims", [[0], [0, 2], [0, 1, 2, 3]])
def test_means_of_short_numbers(dims: list[int]) -> None:
    x = torch.randn(16, 32, 64, 8, dtype=torch.bfloat16)
    found, want = measured_and_predicted(
        "aten.mean.dim", lambda: ops.aten.mean.dim(x, dims), [x], f"1={dims}"
    )
    assert found == want


@pytest.mark.parametrize("value", [1, 1.5, True])
@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.bool, torch.bfloat16, torch.float64]
)
def test_comparisons_to_a_number(dtype: torch.dtype, value: float) -> None:
    x = torch.ones(64, 512).to(dtype)
    found, want = measured_and_predicted(
        "aten.ge.Scalar", lambda: ops.aten.ge.Scalar(x, value), [x], f"1={value}"
    )
    assert found == pytest.approx(want, abs=16)  # the number itself


@pytest.mark.parametrize("op", ["isinf.default", "isfinite.default", "isnan.default"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_questions_of_numbers(dtype: torch.dtype, op: str) -> None:
    x = torch.ones(64, 512, dtype=dtype)
    packet, overload = op.split(".")
    call = getattr(getattr(ops.aten, packet), overload)
    found, want = measured_and_predicted(f"aten.{op}", lambda: call(x), [x])
    assert found == pytest.approx(want, abs=16)


@pytest.mark.parametrize("op", ["any.default", "any.dim", "all.dims"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8, torch.bool])
def test_answers_for_many_numbers(dtype: torch.dtype, op: str) -> None:
    x = torch.ones(64, 512, dtype=dtype)
    packet, overload = op.split(".")
    call = getattr(getattr(ops.aten, packet), overload)
    dims = {"default": (), "dim": (1,), "dims": ([0, 1],)}[overload]
    found, want = measured_and_predicted(f"aten.{op}", lambda: call(x, *dims), [x])
    assert found == want
