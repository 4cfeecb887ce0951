"""What stands for tensors is what torch makes of them, whatever was asked before."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch

from partita.compiler.shaped import Shaped, result_of, shaped

aten = torch.ops.aten
META = torch.device("meta")

X = torch.empty(4, 6, dtype=torch.int64, device=META)
Y = torch.empty(6, 4, dtype=torch.float32, device=META).t()

CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (aten.add.Tensor, (X, 1), {}),
    (aten.add.Tensor, (X, 1.0), {}),
    (aten.add.Tensor, (X, True), {}),
    (aten.add.Tensor, (X, Y), {"alpha": 2}),
    (aten.cat.default, ([X, X], 1), {}),
    (aten.split.Tensor, (Y, 3, 1), {}),
    (aten.index.Tensor, (Y, [None, X[0].clamp(0, 5)]), {}),
    (aten.max.dim, (Y, 0), {}),
    (aten.permute.default, (Y, [1, 0]), {}),
    (aten.sum.dim_IntList, (X, [0]), {"dtype": torch.float64}),
    (aten.full.default, ([2, 3], 1.0), {"device": META}),
    (aten.full.default, ([2, 3], True), {"device": META}),
]


def stand_ins(tree: Any) -> Any:
    """Return arguments or results with what stands for each tensor."""
    if isinstance(tree, list | tuple):
        return type(tree)(stand_ins(part) for part in tree)
    return shaped(tree) if isinstance(tree, torch.Tensor) else tree


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(("op", "args", "kwargs"), CALLS)
def test_shapes_strides_and_dtypes_are_torchs(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], again: bool
) -> None:
    wanted = op(*args, **kwargs)
    wanted = stand_ins(tuple(wanted) if isinstance(wanted, list | tuple) else wanted)
    assert result_of(op, stand_ins(args), kwargs, META) == wanted


def test_numbers_and_choices_need_no_torch() -> None:
    assert result_of(operator.mul, (3, 4), {}, META) == 12
    pair = (Shaped((1,), (1,), torch.float32), Shaped((2,), (1,), torch.float32))
    assert result_of(operator.getitem, (pair, 1), {}, META) == pair[1]


def test_what_torch_refuses_is_refused_each_time() -> None:
    x = shaped(X)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            result_of(aten.mm.default, (x, x), {}, META)
