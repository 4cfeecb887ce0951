"""Slices of which every part has its share of each piece, proven on the real ops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.compiler.rules.rule_values import call, x

from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Split
from partita.compiler.rules.factors import read
from partita.compiler.rules.localize import localize_args
from partita.compiler.rules.rule import Rule
from partita.compiler.rules.signatures import axis_options
from partita.compiler.rules.table import default_rules
from partita.testing import prover
from partita.testing.prover import Sample, prove

MAX = 2**63 - 1


def row(sample: Sample) -> Rule:
    found = default_rules.in_pieces().get(prover.call_of(sample).op)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("sample", "part", "whole"),
    [
        (call("slice.Tensor", x(8, 6), 0, 0, 4, 1), Split(0), Split(0, (4, 4))),
        (call("slice.Tensor", x(8, 6), 0, 4, 6, 1), Split(0), Split(0, (4, 2, 2))),
        (call("slice.Tensor", x(6, 8), 1, 1, 8, 2), Split(1), Split(1)),
        (call("slice.Tensor", x(8, 6), 0, 0, 8, 1), Split(0), Split(0)),
        (call("slice_backward", x(4, 6), [8, 6], 0, 4, MAX, 1), None, (4, 4)),
        (call("slice_backward", x(2, 6), [8, 6], 0, 4, -2, 1), None, (4, 2, 2)),
        (call("slice_backward", x(6, 4), [6, 8], 1, 0, MAX, 2), None, ()),
    ],
)
def test_parts_have_their_share_of_every_piece(
    sample: Sample, part: Any, whole: Any
) -> None:
    rule = row(sample)
    made = prover.call_of(sample)
    dim = int(made.args[2 if part is None else 1])  # type: ignore[call-overload]
    wanted = (whole, part) if part else (Split(dim), Split(dim, whole))
    options = axis_options(rule, read(rule, made), {})
    found = [(o.signature.operands[0], o.signature.results[0]) for o in options]
    assert wanted in found
    assert prove(rule, sample, Mesh(a=2)) > 1


PLACES = torch.arange(48).reshape(8, 6) % 3 == 0


@pytest.mark.parametrize(
    "sample",
    [
        call("masked_scatter", x(8, 6), PLACES, x(4, 4)),
        call("masked_scatter_backward", x(8, 6), PLACES, [4, 4]),
        call("masked_scatter", x(8, 6), PLACES[:, :1], x(8, 6)),
    ],
)
def test_rows_that_a_mask_puts_are_those_of_the_part(sample: Sample) -> None:
    rule = row(sample)
    options = axis_options(rule, read(rule, prover.call_of(sample)), {})
    (option,) = [o for o in options if o.factor == "b"]
    assert set(option.signature.operands) == {Split(0)}
    assert option.signature.results == (Split(0),)
    assert prove(rule, sample, Mesh(a=2)) > 1


def test_rows_of_no_batch_stay_whole() -> None:
    sample = call("masked_scatter", x(5, 6), PLACES[:5], x(4, 4))
    assert "b" not in read(row(sample), prover.call_of(sample)).sizes


@pytest.mark.parametrize(
    "sample",
    [
        call("slice.Tensor", x(8, 6), 0, 2, 8, 2),
        call("slice.Tensor", x(8, 6), 0, 0, 3, 3),
        call("slice.Tensor", x(8, 6), 0, 4, 4, 1),
    ],
)
def test_other_steps_keep_the_dim_whole(sample: Sample) -> None:
    rule = row(sample)
    factors = read(rule, prover.call_of(sample))
    assert "d0" not in factors.sizes
    assert prove(rule, sample, Mesh(a=2)) > 1


def test_only_what_has_pieces_is_read_otherwise() -> None:
    pieces = default_rules.in_pieces()
    masked = {f"aten.masked_scatter{way}.default" for way in ("", "_backward")}
    changed = [
        a.op for a, b in zip(default_rules.rows, pieces.rows, strict=True) if a != b
    ]
    sliced = {"aten.slice.Tensor", "aten.slice_backward.default"}
    assert set(changed) == sliced | masked


def test_bounds_shrink_with_the_shards() -> None:
    cut, padded = (
        default_rules.get(f"aten.{op}")
        for op in ("slice.Tensor", "slice_backward.default")
    )
    assert cut is not None
    assert padded is not None
    assert localize_args(cut, ("x", 0, 4, 8, 1), [(4, 6)], [(2, 6)]) == (
        "x",
        0,
        2,
        4,
        1,
    )
    assert localize_args(cut, ("x", 0, 1, 8, 2), [(4, 6)], [(2, 6)]) == (
        "x",
        0,
        1,
        5,
        2,
    )
    assert localize_args(cut, ("x", 0, 4, 8, 1), [(8, 3)], [(4, 3)]) == (
        "x",
        0,
        4,
        8,
        1,
    )
    args = "x", [8, 6], 0, 4, MAX, 1
    assert localize_args(padded, args, [(2, 6)], [(4, 6)]) == ("x", [4, 6], 0, 2, 4, 1)
    assert localize_args(padded, args, [(4, 3)], [(8, 3)]) == ("x", [8, 3], 0, 4, 8, 1)
