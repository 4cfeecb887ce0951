import pytest
import torch
from tests.compiler.rules.rule_values import call

from partita.compiler.errors import BadRule
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Reduction
from partita.compiler.rules.factors import Factors, Part, read
from partita.compiler.rules.rule import Rule
from partita.compiler.rules.signatures import (
    Segments,
    axis_options,
    combinations,
    split_of,
)
from partita.compiler.rules.table import default_rules
from partita.testing.prover import Sample, call_of


def read_row(sample: Sample) -> tuple[Rule, Factors]:
    rule = default_rules.get(sample.op)
    assert rule is not None
    return rule, read(rule, call_of(sample))


def on_one_axis(sample: Sample, **segments: Segments) -> list[str]:
    rule, factors = read_row(sample)
    tried = {name: frozenset({found}) for name, found in segments.items()}
    return [str(option.signature) for option in axis_options(rule, factors, tried)]


def on_mesh(sample: Sample, mesh: Mesh, **segments: Segments) -> list[str]:
    rule, factors = read_row(sample)
    tried = {name: frozenset({found}) for name, found in segments.items()}
    options = axis_options(rule, factors, tried)
    return [str(found.signature) for found in combinations(factors, options, mesh)]


def x(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


def test_matrix_product() -> None:
    assert on_one_axis(call("mm", x(4, 6), x(6, 8))) == [
        "B, B -> B",
        "P(sum), B -> P(sum)",
        "B, P(sum) -> P(sum)",
        "S(0), B -> S(0)",
        "S(1), S(0) -> P(sum)",
        "B, S(1) -> S(1)",
    ]


def test_bias_is_partial_where_the_product_is() -> None:
    assert on_one_axis(call("addmm", x(8), x(4, 6), x(6, 8))) == [
        "B, B, B -> B",
        "P(sum), P(sum), B -> P(sum)",
        "P(sum), B, P(sum) -> P(sum)",
        "S(0), B, S(1) -> S(1)",
        "B, S(0), B -> S(0)",
        "P(sum), S(1), S(0) -> P(sum)",
    ]


def test_linear_through_either_or_both() -> None:
    partial = ["P(sum), B -> P(sum)", "B, P(sum) -> P(sum)"]

    assert on_one_axis(call("mul.Tensor", x(2), x(2)))[1:3] == partial
    assert on_one_axis(call("div.Tensor", x(2), x(2)))[1:2] == partial[:1]
    assert "P(sum), P(sum) -> P(sum)" in on_one_axis(call("add.Tensor", x(2), x(2)))


@pytest.mark.parametrize(
    "sample",
    [
        call("add.Tensor", x(2), 1.0),
        call("pow.Tensor_Scalar", x(2), 2),
        call("_to_copy", x(2), dtype=torch.int64),
        call("mul.Tensor", x(2).long(), 2),
        call("masked_fill.Scalar", x(2), x(2).bool(), 1.0),
    ],
    ids=lambda sample: sample.op,
)
def test_partial_does_not_pass_what_is_not_linear(sample: Sample) -> None:
    assert not any("P(sum)" in text for text in on_one_axis(sample))


def test_integers_sum_up_even_so() -> None:
    assert on_one_axis(call("sum", x(4).bool())) == ["B -> B", "S(0) -> P(sum)"]


def test_maximum_reduces_to_a_partial_maximum() -> None:
    assert on_one_axis(call("amax", x(4, 6), [1])) == [
        "B -> B",
        "S(0) -> S(0)",
        "S(1) -> P(max)",
    ]


def test_reduced_factor_stays_whole_where_nothing_joins_it() -> None:
    assert on_one_axis(call("argmax", x(4, 6), 1)) == ["B -> B", "S(0) -> S(0)"]


def test_factor_inside_a_dim_splits_it_in_segments() -> None:
    assert on_one_axis(call("reshape", x(2, 32), [2, 2, 16]))[2:] == [
        "S(0) -> S(0)",
        "S(1) -> S(1)",
        "S(1; 16|16) -> S(2)",
    ]
    assert split_of(Part("h", 2, 4, outer=3, inner=16), ()).segments == (64, 64, 64)
    assert split_of(Part("h", 0, 4, inner=8), (2, 2)).segments == (16, 16)


def test_pieces_are_split_each_by_itself() -> None:
    assert on_one_axis(call("split_with_sizes", x(12), [4, 4, 4]))[-1] == (
        "S(0; 4|4|4) -> S(0), S(0), S(0)"
    )
    assert on_one_axis(call("cat", [x(4, 2), x(4, 6)], 1))[-1] == (
        "S(1), S(1) -> S(1; 2|6)"
    )


def test_segments_are_tried_besides_none() -> None:
    assert on_one_axis(call("relu", x(8)), **{"*0": (6, 2)}) == [
        "B -> B",
        "S(0) -> S(0)",
        "S(0; 6|2) -> S(0; 6|2)",
    ]


def test_rows_of_a_causal_attention_stay_whole() -> None:
    q, k = x(2, 4, 6, 8), x(2, 2, 6, 8)
    both = [
        "B, B, B -> B, B",
        "S(0), S(0), S(0) -> S(0), S(0)",
        "S(1), S(1), S(1) -> S(1), S(1)",
        "S(1; 2|2), B, B -> S(1; 2|2), S(1; 2|2)",
    ]
    rows = "S(2), B, B -> S(2), S(2)"

    causal = on_one_axis(call("partita.attention", q, k, k, None, True, 1.0))
    full = on_one_axis(call("partita.attention", q, k, k, None, False, 1.0))

    assert sorted(causal) == sorted(both)
    assert sorted(full) == sorted([*both, rows])


def test_mask_that_broadcasts_stays_whole() -> None:
    q, mask = x(2, 4, 6, 8), x(2, 1, 6, 6)
    options = on_one_axis(call("partita.attention", q, q, q, mask, False, 1.0))

    assert "S(1), S(1), S(1), B -> S(1), S(1)" in options
    assert "S(0), S(0), S(0), S(0) -> S(0), S(0)" in options


def test_axes_combine_freely() -> None:
    found = on_mesh(call("mm", x(4, 6), x(6, 8)), Mesh(dp=2, tp=2))

    assert len(found) == 6 * 6 - 1  # 6 is not divisible by 4
    assert "(S(0), S(1)), (B, S(0)) -> (S(0), P(sum))" in found
    assert "(S(0), S(0)), (B, B) -> (S(0), S(0))" in found
    assert "(S(1), S(1)), (S(0), S(0)) -> (P(sum), P(sum))" not in found


def test_axis_of_size_one_offers_nothing() -> None:
    assert on_mesh(call("relu", x(8)), Mesh(a=1, b=2)) == [
        "(B, B) -> (B, B)",
        "(B, S(0)) -> (B, S(0))",
    ]


@pytest.mark.parametrize(
    ("sample", "ranks", "splits"),
    [
        (call("relu", x(6)), 4, False),  # 2, 2, 2, 0: a rank would hold nothing
        (call("relu", x(7)), 4, True),  # 2, 2, 2, 1
        (call("reshape", x(14), [7, 2]), 4, True),
        (call("reshape", x(2, 7), [14]), 4, False),  # nor 14 in segments of 7
        (call("split_with_sizes", x(14), [7, 7]), 4, False),
    ],
    ids=["empty", "uneven", "outer", "inner", "pieces"],
)
def test_uneven_splits_are_offered_where_chunks_agree(
    sample: Sample, ranks: int, splits: bool
) -> None:
    assert any("S(" in text for text in on_mesh(sample, Mesh(a=ranks))) == splits


def test_axes_do_not_cut_across_each_other() -> None:
    found = on_mesh(call("reshape", x(64), [4, 16]), Mesh(a=2, b=2))

    assert "(S(0), S(0; 16*4)) -> (S(0), S(1))" in found
    assert "(S(0; 16*4), S(0)) -> (S(1), S(0))" not in found


def test_one_factor_is_not_split_in_two_ways() -> None:
    found = on_mesh(call("relu", x(16)), Mesh(a=2, b=2), **{"*0": (8, 8)})

    assert "(S(0), S(0; 8|8)) -> (S(0), S(0; 8|8))" not in found


def test_linear_must_name_operands() -> None:
    rule = Rule("aten.relu.default", "* -> *", linear="0+1")

    with pytest.raises(BadRule, match=r"linear '0\+1' of 1 operands"):
        axis_options(rule, read(rule, call_of(call("relu", x(4)))), {})


def test_other_reductions_carry_no_partial_sums() -> None:
    rule = Rule("aten.max.default", "* -> ", reduce=Reduction.MIN)
    options = axis_options(rule, read(rule, call_of(call("max", x(4)))), {})

    assert [str(option.signature) for option in options] == ["B -> B", "S(0) -> P(min)"]
