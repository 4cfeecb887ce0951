"""Placements print and parse, and cannot exist invalid."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import pytest
from hypothesis import given
from tests.compiler.ir.placement_strategies import any_placements

from partita.compiler.errors import BadPlacement
from partita.compiler.ir.sbp import Broadcast, Partial, Placement, Reduction, Split


@given(any_placements())
def test_what_prints_parses(placement: Placement) -> None:
    assert Placement.parse(str(placement)) == placement


@given(any_placements())
def test_placements_are_values(placement: Placement) -> None:
    other = pickle.loads(pickle.dumps(placement))
    assert other == placement
    assert hash(other) == hash(placement)


def test_a_placement_from_another_process_is_the_same_key() -> None:
    make = (
        "import pickle, sys; from partita.compiler.ir.sbp import Placement; "
        "sys.stdout.buffer.write(pickle.dumps(Placement.parse('(P(max), S(0))')))"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": path}
    made = subprocess.run(
        [sys.executable, "-c", make], env=environment, capture_output=True, check=True
    )
    here = Placement.parse("(P(max), S(0))")
    assert {here: "found"}[pickle.loads(made.stdout)] == "found"


@pytest.mark.parametrize(
    ("text", "placement"),
    [
        ("B", Placement((Broadcast(),))),
        ("(B,)", Placement((Broadcast(),))),
        (" ( S(0) , B ) ", Placement((Split(0), Broadcast()))),
        ("P", Placement((Partial(),))),
        ("P(), P(min)", Placement((Partial(), Partial(Reduction.MIN)))),
        ("S(1; 8*3|4)", Placement((Split(1, (8, 8, 8, 4)),))),
        ("S( 1 ;4 | 4|2 )", Placement((Split(1, (4, 4, 2)),))),
        ("S(0), S(0; 8*4)", Placement((Split(0), Split(0, (8,) * 4)))),
    ],
)
def test_other_spellings_parse(text: str, placement: Placement) -> None:
    assert Placement.parse(text) == placement


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "",
            "placement '': found ''; want one of S(dim), S(dim; a|b|...), B, "
            "P(sum|max|min) per mesh axis",
        ),
        (
            "(S(x), B)",
            "placement '(S(x), B)': found 'S(x), B'; want one of S(dim), "
            "S(dim; a|b|...), B, P(sum|max|min) per mesh axis",
        ),
        (
            "(S(-1),)",
            "placement '(S(-1),)': found 'S(-1)'; want one of S(dim), "
            "S(dim; a|b|...), B, P(sum|max|min) per mesh axis",
        ),
        ("(B B)", "placement '(B B)': want ',' at 'B'"),
        ("P(avg)", "placement 'P(avg)': P(avg) is not one of P(sum), P(max), P(min)"),
        ("S(0; 4||4)", "placement 'S(0; 4||4)': segment '' is not SIZE or SIZE*N"),
        ("S(0; 4|0)", "S(0): segments (4, 0) must be >= 1"),
    ],
)
def test_text_that_is_no_placement_is_refused(text: str, message: str) -> None:
    with pytest.raises(BadPlacement) as caught:
        Placement.parse(text)
    assert str(caught.value) == message


def test_dims_are_counted_from_zero() -> None:
    with pytest.raises(BadPlacement, match=r"S\(-1\): dims are counted from 0"):
        Split(-1)


def test_one_segment_is_a_plain_split() -> None:
    assert Split(0, (8,)) == Split(0)
    assert Split(0, (8,)).segments == ()


def test_long_runs_of_equal_segments_print_short() -> None:
    assert str(Split(0, (8,) * 6)) == "S(0; 8*6)"
    assert str(Split(0, (8, 8, 8))) == "S(0; 8|8|8)"


def test_later_axis_may_refine_segments_but_not_cut_across() -> None:
    halves, quarters = Split(0, (8, 8)), Split(0, (4, 4, 4, 4))
    assert Placement((halves, quarters)).axes_splitting(0) == (0, 1)
    with pytest.raises(BadPlacement) as caught:
        Placement((quarters, halves))
    assert str(caught.value) == (
        "(S(0; 4*4), S(0; 8|8)): S(0; 8|8) cuts across the segments of S(0; 4*4); a "
        "later axis may only split the same segments or finer ones"
    )


def test_questions_about_a_placement() -> None:
    placement = Placement.parse("(S(1), P(max), S(1))")
    assert placement.ndim == 3
    assert placement.axes_splitting(1) == (0, 2)
    assert placement.axes_splitting(0) == ()
    assert placement.has_partial
    assert not placement.is_broadcast
    assert Placement.broadcast(2).is_broadcast
    assert not Placement.broadcast(2).has_partial


def test_with_axis_changes_one_axis_of_a_copy() -> None:
    placement = Placement.parse("(S(1), P)")
    assert str(placement.with_axis(1, Broadcast())) == "(S(1), B)"
    assert str(placement) == "(S(1), P(sum))"
