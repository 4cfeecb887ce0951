"""Rows of ops that the table lacks, found by running them."""

from collections import Counter
from itertools import chain
from pathlib import Path

import pytest
import torch
from tests.compiler.rules.custom_ops import call
from tests.compiler.rules.rule_samples import samples

from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Reduction
from partita.compiler.rules.derive import derive
from partita.compiler.rules.rule import Call, Rule
from partita.testing.prover import call_of, prove, sample_of

SWISH = call("swish", ("f32[512, 768]", 1.5), "f32[512, 768]")
ROW_NORM = call("row_norm", ("f32[4, 512, 768]", "f32[768]"), "f32[4, 512, 768]")
DENSE = call("dense", ("f32[512, 768]", "f32[768, 96]", "f32[96]"), "f32[512, 96]")
SQUARE = call("dense", ("f64[64, 64]", "f64[64, 64]", "f64[64]"), "f64[64, 64]")
WIDEST = call("widest", ("f32[512, 768]",), "f32[768]")
MOMENTS = call("moments", ("f32[512, 512]",), "f32[512, 512]", "f32[512]")
HEADS = call("heads", ("f32[4, 16, 96]", 12), "f32[4, 16, 96]")
STIR = call("stir", ("f32[512, 512]",), "f32[512, 512]")
IN_PAIRS = call("in_pairs", ("f32[64]",), "f32[64]")
NOISY = call("noisy", ("f32[64]",), "f32[64]")
WRITES = call("add_to", ("f32[64]", "f32[64]"), "f32[64]")
CRASH = call("crash", ("f32[64]",), "f32[64]")
CLIP = call("clip", ("f32[64, 32]",), "f32[64, 32]")
PICK = call("pick", ("f32[64, 32]", "i64[4, 128]"), "f32[4, 128, 32]")
LARGE = call("has_large", ("f32[64, 32]",), "f32[64, 32]", "b8[]")
VERSION = call("with_version", ("f64[64]", "f64[32]"), "f64[64]", "f64[32]")
WITHOUT_NAN = call("without_nan", ("f32[64, 32]",), "f32[64, 32]")
DERIVED = {
    SWISH: Rule(SWISH.op, "f0 f1 -> f0 f1"),
    ROW_NORM: Rule(ROW_NORM.op, "f0 f1 ?, ? -> f0 f1 ?", linear="1"),
    DENSE: Rule(DENSE.op, "f0 f1, f1 f2, f2 -> f0 f2", linear="0*1+2"),
    SQUARE: Rule(SQUARE.op, "f0 f1, f1 f2, f2 -> f0 f2", linear="0*1+2"),
    WIDEST: Rule(WIDEST.op, "f0 f1 -> f1", reduce=Reduction.MAX),
    MOMENTS: Rule(MOMENTS.op, "f0 f1 -> f0 f1, f1", linear="0"),
    CLIP: Rule(CLIP.op, "f0 f1 -> f0 f1"),
    PICK: Rule(PICK.op, "? f0, f1 f2 -> f1 f2 f0", linear="0"),
    VERSION: Rule(VERSION.op, "f0, f1 -> f0 =f1, f1 =f0"),
    WITHOUT_NAN: Rule(WITHOUT_NAN.op, "f0 f1 -> f0 f1"),
    HEADS: Rule(HEADS.op, "f0 f1 ? -> f0 f1 ?"),
}


@pytest.mark.parametrize("known", DERIVED, ids=str)
def test_what_holds_becomes_a_row(known: Call) -> None:
    assert derive(known) == DERIVED[known]


@pytest.mark.parametrize("known", [SQUARE, HEADS], ids=str)
def test_derived_row_is_proven_on_every_mesh(known: Call) -> None:
    rule = derive(known)

    assert rule is not None
    for mesh in (Mesh(a=2), Mesh(a=4), Mesh(a=2, b=2)):
        assert prove(rule, sample_of(known), mesh) > 1


@pytest.mark.parametrize(
    "unknown", [STIR, IN_PAIRS, NOISY, WRITES, CRASH, LARGE], ids=lambda c: c.op
)
def test_nothing_is_derived_where_nothing_holds_or_may_be_tried(unknown: Call) -> None:
    assert derive(unknown) is None


def test_op_that_does_not_exist_or_takes_no_tensors_has_no_row() -> None:
    assert derive(call("nothing_of_this_name", ("f32[4]",), "f32[4]")) is None
    assert derive(call("swish", (), "f32[4]")) is None


def test_op_with_shapes_that_depend_on_data_is_not_run() -> None:
    (x,) = call("", ("f32[4]",)).operands
    op = "aten.nonzero.default"

    assert derive(Call(op, (x,), (), (x,), call("", (), "i64[4, 1]").results)) is None


def test_rows_of_the_table_are_found_again() -> None:
    types = call("", ("f32[64, 96]", "f32[96, 32]"), "f32[64, 32]")
    mm = Call("aten.mm.default", types.args, (), types.operands, types.results)

    assert derive(mm) == Rule(mm.op, "f0 f1, f1 f2 -> f0 f2", linear="0*1")


@pytest.mark.parametrize("op", ["aten.all.default", "aten.any.default"])
def test_what_parts_agree_on_by_luck_is_not_the_same_on_each(op: str) -> None:
    types = call("", ("f32[64, 96]",), "b8[]")

    assert derive(Call(op, types.args, (), types.operands, types.results)) is None


@pytest.mark.slow
def test_rows_derived_for_ops_of_the_table_are_proven() -> None:
    counts = Counter[str]()
    for sample in chain(*samples().values()):
        rule = None if sample.stand_in else derive(call_of(sample))
        if rule is None:
            counts["none"] += 1
            continue
        counts["derived"] += 1
        for mesh in (Mesh(a=2), Mesh(a=3), Mesh(a=2, b=2)):
            counts["proven"] += prove(rule, sample, mesh)

    # The others are views, constants, and ops that state shapes.
    assert counts["derived"] > 3 * counts["none"]
    assert counts["proven"] > 10 * counts["derived"]


def test_sum_and_maximum_are_not_one_reduction() -> None:
    types = call("", ("f64[6, 10]", 0), "f64[10]", "i64[10]")
    op = "aten.max.dim"

    rule = derive(Call(op, types.args, (), types.operands, types.results))

    assert rule == Rule(op, "? f0 -> f0, f0")


def test_large_tensors_are_tried_small_and_else_not_at_all() -> None:
    large = call("swish", (f"f32[{1 << 20}, 4096]", 1.0), f"f32[{1 << 20}, 4096]")
    # A size that the call states stays; here all of them do.
    stated = Call(
        large.op, (*large.args, 1 << 20, 4096), (), large.operands, large.results
    )

    assert derive(large) == Rule(large.op, "f0 f1 -> f0 f1")
    assert derive(stated) is None


def test_many_operands_are_cut_in_one_place() -> None:
    types = (*call("", ("f32[64, 96]",)).operands,) * 16
    many = call("total", (types,), "f32[64, 96]")

    rule = derive(many)

    assert rule == Rule(
        many.op,
        f"{', '.join(['f0 f1'] * 16)} -> f0 f1",
        linear="+".join(map(str, range(16))),
    )


def test_what_was_found_is_remembered(tmp_path: Path) -> None:
    rule = derive(SWISH, tmp_path)
    (file,) = (tmp_path / "derived").iterdir()
    text = file.read_text()
    file.write_text(text.replace("f0 f1 -> f0 f1", "? f1 -> ? f1"))

    assert rule == DERIVED[SWISH]
    assert derive(SWISH, tmp_path) == Rule(SWISH.op, "? f1 -> ? f1")


def test_what_crashes_is_tried_again_another_time(tmp_path: Path) -> None:
    assert derive(CRASH, tmp_path) is None
    assert derive(STIR, tmp_path) is None

    assert [p.name.split("-")[0] for p in (tmp_path / "derived").iterdir()] == [STIR.op]


def test_threads_of_this_process_stay_as_they_are() -> None:
    before = torch.get_num_threads()

    derive(SWISH)

    assert torch.get_num_threads() == before
