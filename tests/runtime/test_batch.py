"""A batch that is not as the example's is refused, before anything is computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from partita.compiler.errors import BadBatch
from partita.compiler.ir.tensor_type import TensorType
from partita.runtime.batch import BatchSpec

SPEC = BatchSpec(
    lambda args, kwargs: {**dict(zip(("x", "k"), args, strict=False)), **kwargs},
    {"x": TensorType((2, 3), torch.float32), "k": 2},
)


def test_tensors_are_read_by_name() -> None:
    x = torch.ones(2, 3)
    assert SPEC.read((), {"k": 2, "x": x})["x"] is x


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((torch.ones(4, 3), 2), "input 'x' is f32[4, 3]; want f32[2, 3], the whole"),
        (
            (torch.ones(2, 3).to_sparse(), 2),
            "input 'x' is f32[2, 3] (sparse_coo); want f32[2, 3], the whole batch",
        ),
        (
            (torch.ones(2, 3, device="meta"), 2),
            "input 'x' is f32[2, 3] (on the meta device); want f32[2, 3], the whole",
        ),
        ((None, 2), "input 'x' is None; want f32[2, 3]"),
        ((torch.ones(2, 3), True), "input 'k' is True; want 2, as in"),
        ((torch.ones(2, 3),), "input 'k' is missing; want 2"),
    ],
)
def test_what_is_not_as_the_example_is_refused(
    args: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(BadBatch) as refused:
        SPEC.read(args, {})
    assert str(refused.value).startswith(f"batch: {message}")
