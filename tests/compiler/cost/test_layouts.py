"""What torch says of memory, asked through a plan's texts."""

from __future__ import annotations

import pytest
import torch

from partita.compiler.cost.layouts import Laid, in_order, is_in_order, lay_out
from partita.compiler.ir.tensor_type import TensorType

T = TensorType.parse


def run(
    op: str, constants: str, operands: list[torch.Tensor], *results: str
) -> tuple[Laid | None, ...]:
    given = tuple(
        (TensorType(tuple(x.shape), x.dtype), tuple(x.stride())) for x in operands
    )
    types = tuple(None if r == "None" else T(r) for r in results)
    return lay_out(op, tuple(constants.split(";") if constants else ()), given, types)


X = torch.empty(4, 6)


@pytest.mark.parametrize(
    ("op", "constants", "result"),
    [
        ("aten.permute.default", "1=[1, 0]", "f32[6, 4]"),
        ("aten.reshape.default", "1=[24]", "f32[24]"),
        ("aten.slice.Tensor", "1=1;2=0;3=2", "f32[4, 2]"),
        ("aten.select.int", "1=0;2=1", "f32[6]"),
    ],
)
def test_views_share_their_operands_memory(
    op: str, constants: str, result: str
) -> None:
    (laid,) = run(op, constants, [X], result)
    assert laid is not None
    assert (laid.operand, laid.num_bytes) == (0, X.numel() * 4)


def test_a_reshape_that_cannot_be_a_view_is_a_copy() -> None:
    laid = run("aten.reshape.default", "1=[24]", [X.t()], "f32[24]")
    assert laid == (Laid((1,), 96, None),)


def test_pieces_of_a_split_share_one_memory() -> None:
    pieces = "f32[4, 2]", "f32[4, 4]"
    laid = run("aten.split_with_sizes.default", "1=[2, 4];2=1", [X], *pieces)
    assert laid == (Laid((6, 1), 96, 0), Laid((6, 1), 96, 0))


def test_sizes_shrink_to_the_ranks_own() -> None:
    # The logical call made [8, 6]; this rank has half of it.
    laid = run("aten.reshape.default", "1=[8, 3, 2]", [X], "f32[4, 3, 2]")
    assert laid == (Laid((6, 2, 1), 96, 0),)


def test_elementwise_ops_keep_the_order_of_dims() -> None:
    laid = run("aten.relu.default", "", [X.t()], "f32[6, 4]")
    assert laid == (Laid((1, 6), 96, None),)
    assert not is_in_order(T("f32[6, 4]"), (1, 6))


def test_an_expanded_tensor_is_as_small_as_it_was() -> None:
    laid = run("aten.expand.default", "1=[5, 6]", [torch.empty(1, 6)], "f32[5, 6]")
    assert laid == (Laid((0, 1), 24, 0),)


def test_lists_of_operands_find_their_place() -> None:
    laid = run("aten.cat.default", "1=1", [X, X.t().reshape(4, 6)], "f32[4, 12]")
    assert laid == (in_order(T("f32[4, 12]")),)


def test_results_that_are_no_tensors_have_no_memory() -> None:
    laid = run("aten.mystery.default", "", [X], "f32[2]", "None")
    assert laid == (Laid((1,), 8, None), None)


@pytest.mark.parametrize(
    ("op", "constants"),
    [
        ("aten.permute.default", "1=[7, 0]"),  # torch refuses it
        ("aten.permute.default", "1=[0, 1]"),  # of another shape than the plan says
        ("aten.relu_.default", ""),  # writes to its operand
        ("aten.no_such_op.default", ""),
        ("os.system.default", "1=ls"),
    ],
)
def test_what_cannot_be_asked_is_new_and_in_order(op: str, constants: str) -> None:
    want = in_order(T("f32[6, 4]"))
    assert run(op, constants, [X], "f32[6, 4]") == (want,)


def test_dims_of_size_one_are_in_order_with_any_stride() -> None:
    assert is_in_order(T("f32[1, 3]"), (77, 1))
    assert in_order(T("f32[]")) == Laid((), 4)
