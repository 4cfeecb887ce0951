"""Tensor types print and parse."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partita.compiler.errors import BadPlan
from partita.compiler.ir.tensor_type import TensorType

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex32,
    torch.complex64,
    torch.complex128,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint64,
    torch.uint32,
    torch.uint16,
    torch.uint8,
    torch.bool,
]


@given(
    st.lists(st.integers(0, 1 << 11), max_size=5).map(tuple), st.sampled_from(DTYPES)
)
def test_what_prints_parses(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    type_ = TensorType(shape, dtype)
    assert TensorType.parse(str(type_)) == type_


def test_sizes() -> None:
    type_ = TensorType((8, 4), torch.bfloat16)
    assert (type_.ndim, type_.numel, type_.num_bytes) == (2, 32, 64)
    assert TensorType((), torch.float64).num_bytes == 8
    assert TensorType((0, 3), torch.float64).num_bytes == 0


@pytest.mark.parametrize(
    "text", ["f32", "f33[8]", "f32[8,]", "f32[-1]", "f32[8] ", "[]"]
)
def test_text_that_is_no_type_is_refused(text: str) -> None:
    with pytest.raises(BadPlan) as caught:
        TensorType.parse(text)
    assert str(caught.value) == f"tensor type {text!r} is not of the form f32[8, 4]"


@pytest.mark.parametrize("size", ["9" * 19, "9" * 400, "9" * 5000, f"1, {2**61}"])
def test_more_than_any_memory_is_refused(size: str) -> None:
    with pytest.raises(BadPlan, match="no memory holds more than 2\\^63 - 1 bytes"):
        TensorType.parse(f"f32[{size}]")


def test_the_largest_type_is_read() -> None:
    assert TensorType.parse(f"u8[{2**63 - 1}]").num_bytes == 2**63 - 1
