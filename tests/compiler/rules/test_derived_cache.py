"""Derived rows are remembered in files that may be damaged, shared or in the way."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.compiler.rules.custom_ops import call

from partita.compiler.ir.sbp import Reduction
from partita.compiler.rules.derived_cache import DerivedCache, Remembered
from partita.compiler.rules.rule import Rule

CALL = call("swish", ("f32[4, 6]", 1.5), "f32[4, 6]")
ROW = Rule(CALL.op, "f0 f1 -> f1", linear="0", reduce=Reduction.MAX)


@pytest.mark.parametrize("row", [ROW, replace(ROW, reduce=None), None])
def test_row_comes_back_as_it_was_stored(tmp_path: Path, row: Rule | None) -> None:
    cache = DerivedCache(tmp_path)

    cache.store(CALL, row)

    assert cache.load(CALL) == Remembered(row)


def test_other_shapes_and_arguments_are_other_calls(tmp_path: Path) -> None:
    cache = DerivedCache(tmp_path)
    cache.store(CALL, ROW)

    for other in (
        call("swish", ("f32[4, 7]", 1.5), "f32[4, 7]"),
        call("swish", ("f32[4, 6]", 2.5), "f32[4, 6]"),
        call("swish", ("f64[4, 6]", 1.5), "f64[4, 6]"),
    ):
        assert cache.load(other) is None


@pytest.mark.parametrize(
    ("pattern", "damage"),
    [
        (".*", ""),
        ("(.{40}).*", r"\1"),
        (".*", "[]"),
        (".*", "{}"),
        ('"version": 1', '"version": 0'),
        ("4, 6", "4, 7"),
        ('"f0 f1 -> f1"', "7"),
        ('"max"', '"median"'),
    ],
)
def test_damaged_file_is_ignored_and_written_anew(
    tmp_path: Path, pattern: str, damage: str
) -> None:
    cache = DerivedCache(tmp_path)
    cache.store(CALL, ROW)
    (file,) = (tmp_path / "derived").iterdir()
    text = file.read_text()
    file.write_text(re.sub(pattern, damage, text, count=1, flags=re.DOTALL))

    assert file.read_text() != text
    assert cache.load(CALL) is None
    cache.store(CALL, ROW)
    assert cache.load(CALL) == Remembered(ROW)


def test_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = DerivedCache(tmp_path / "file")

    cache.store(CALL, ROW)

    assert cache.load(CALL) is None


def test_nothing_is_left_lying_around(tmp_path: Path) -> None:
    cache = DerivedCache(tmp_path)

    cache.store(CALL, ROW)
    cache.store(CALL, None)

    assert len(list((tmp_path / "derived").iterdir())) == 1
