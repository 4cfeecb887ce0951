"""Calls as plans print them, read back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from partita.compiler.plan.printed_call import find_op, read_arguments

aten = torch.ops.aten


def test_an_op_is_found_by_its_name() -> None:
    assert find_op("aten.mm.default") is aten.mm.default
    assert find_op("aten.mm.of_three") is None
    assert find_op("nowhere.mm.default") is None
    for name in ("mm", "aten.mm", "aten.mm.", "aten.mm.default.more", ""):
        assert find_op(name) is None


@pytest.mark.parametrize(
    ("target", "constants", "operands", "args", "kwargs"),
    [
        (aten.mm.default, (), "xy", ("x", "y"), {}),
        (aten.sum.dim_IntList, ("1=[0, 1]", "2=True"), "x", ("x", [0, 1], True), {}),
        (aten.cat.default, ("1=-1",), "xyz", (["x", "y", "z"], -1), {}),
        (
            aten.to.dtype,
            ("1=torch.bfloat16", "memory_format=torch.channels_last"),
            "x",
            ("x", torch.bfloat16),
            {"memory_format": torch.channels_last},
        ),
        (aten.full.default, ("0=[2]", "1=-inf"), "", ([2], float("-inf")), {}),
    ],
)
def test_constants_stand_where_they_stood(
    target: Any,
    constants: tuple[str, ...],
    operands: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    assert read_arguments(target, constants, tuple(operands)) == (args, kwargs)


def test_too_many_operands_have_no_place() -> None:
    with pytest.raises(ValueError, match="1 operands have no place"):
        read_arguments(aten.mm.default, (), "xyz")
