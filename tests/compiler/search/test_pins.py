"""Pins parse, and name what is wrong with them."""

from __future__ import annotations

import pytest
from hypothesis import given
from tests.compiler.ir.placement_strategies import any_placements

from partita.compiler.errors import BadOptions
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.held import Held
from partita.compiler.search.pins import Pin, check_pin, parse_pin

at = Placement.parse
GRID = Mesh(dp=2, tp=2)
MATRIX = TensorType.parse("f32[8, 4]")


@pytest.mark.parametrize(
    ("text", "pin"),
    [
        ("(S(0), B)", Pin(at("(S(0), B)"))),
        ("(S(0), B) use=(B, B)", Pin(at("(S(0), B)"), at("(B, B)"))),
        ("use=S(1)", Pin(None, at("S(1)"))),
        ("  B  use= B ", Pin(at("B"), at("B"))),
        ("storage=B", Pin(at("B"))),
        ("B; use=S(0)", Pin(at("B"), at("S(0)"))),
        (
            "storage=(B); gradient=(S(0)); optimizer=(S(0)); use=(B)",
            Pin(at("B"), at("B"), at("S(0)"), at("S(0)")),
        ),
        (
            "optimizer=(S(0), S(1; 2|2)) gradient = (B, S(1; 2|2));",
            Pin(None, None, at("(B, S(1; 2|2))"), at("(S(0), S(1; 2|2))")),
        ),
    ],
)
def test_pins_are_of_any_of_the_placements(text: str, pin: Pin) -> None:
    assert parse_pin("w", text) == pin
    assert parse_pin("w", str(pin)) == pin


def test_a_placement_pins_as_its_text_does() -> None:
    assert parse_pin("w", at("(S(0), B)")) == parse_pin("w", "(S(0), B)")


@given(any_placements(), any_placements())
def test_any_placement_may_be_pinned(storage: Placement, use: Placement) -> None:
    assert parse_pin("w", f"{storage} use={use}") == Pin(storage, use)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "S0",
            "pin 'w': placement 'S0': found 'S0'; want one of S(dim), S(dim; a|b|...), "
            "B, P(sum|max|min) per mesh axis",
        ),
        (
            "B use=",
            "pin 'w': placement '': found ''; want one of S(dim), S(dim; a|b|...), B, "
            "P(sum|max|min) per mesh axis",
        ),
    ],
)
def test_text_that_is_no_pin_is_refused(text: str, message: str) -> None:
    with pytest.raises(BadOptions) as caught:
        parse_pin("w", text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "S(0)",
            "pin 'w': placement (S(0),) has 1 entries, mesh dp=2,tp=2 has 2 axes; give "
            "one entry per axis",
        ),
        (
            "(B, B) use=B",
            "pin 'w': placement (B,) has 1 entries, mesh dp=2,tp=2 has 2 axes; give "
            "one entry per axis",
        ),
        (
            "(B, S(2))",
            "pin 'w' is illegal for f32[8, 4]: placement (B, S(2)): S(2) names dim 2, "
            "but shape [8, 4] has 2 dims",
        ),
        (
            "(B, B) use=(S(0; 4|5), B)",
            "pin 'w' is illegal for f32[8, 4]: placement (S(0; 4|5), B): the segments "
            "of S(0; 4|5) add up to 9, dim 0 of shape [8, 4] to 8",
        ),
    ],
)
def test_pin_that_does_not_fit_is_refused(text: str, message: str) -> None:
    with pytest.raises(BadOptions) as caught:
        check_pin("w", parse_pin("w", text), MATRIX, GRID)
    assert str(caught.value) == message


def test_pin_that_fits_is_accepted() -> None:
    pin = parse_pin("w", "(S(0), S(1; 2|2)) use=(B, S(0))")
    check_pin("w", pin, MATRIX, GRID)
    assert pin.use == at("(B, S(0))")


def test_what_is_stored_is_never_partial() -> None:
    pin = parse_pin("w", "(S(0), P(sum))")
    check_pin("w", pin, MATRIX, GRID)
    with pytest.raises(BadOptions) as caught:
        check_pin("w", pin, MATRIX, GRID, stored=True)
    assert str(caught.value) == (
        "pin 'w' is illegal: (S(0), P(sum)) cannot be stored; want S or B per axis (a "
        "partial use is 'use=(S(0), P(sum))')"
    )


@pytest.mark.parametrize("word", ["gradient", "optimizer"])
def test_what_is_updated_is_never_partial(word: str) -> None:
    pin = parse_pin("w", f"{word}=(B, P(sum))")
    with pytest.raises(BadOptions, match=r"\(B, P\(sum\)\) cannot be stored"):
        check_pin("w", pin, MATRIX, GRID, stored=True)
    pin = parse_pin("w", f"{word}=(B, S(2))")
    with pytest.raises(BadOptions, match="names dim 2, but shape"):
        check_pin("w", pin, MATRIX, GRID, stored=True)


@pytest.mark.parametrize("text", ["use=B; use=B", "(B) storage=(B)"])
def test_one_placement_is_fixed_once(text: str) -> None:
    with pytest.raises(BadOptions, match=r"pin 'w': fixes the \w+ twice in"):
        parse_pin("w", text)


def test_gradient_and_optimizer_follow_the_storage() -> None:
    split, whole = at("S(0)"), at("B")
    assert Pin(None).held(split) == Held(split, split)
    assert Pin(whole, optimizer=split).held(whole) == Held(whole, split)
    assert Pin(whole, gradient=split).held(whole) == Held(split, whole)


@pytest.mark.parametrize(
    ("text", "pin"),
    [
        ("on tp", Pin(None, on=("tp",))),
        ("on dp,tp ; use=(B, B)", Pin(None, at("(B, B)"), on=("dp", "tp"))),
        ("(S(0), B) ~ 1ms", Pin(at("(S(0), B)"), price_s=1e-3)),
        ("B; use=B~20 us", Pin(at("B"), at("B"), price_s=20 * 1e-6)),
        ("on tp ~ 0.5s", Pin(None, on=("tp",), price_s=0.5)),
        ("B; gradient=S(0) ~ 1s", Pin(at("B"), gradient=at("S(0)"), price_s=1.0)),
    ],
)
def test_scopes_and_prices_parse(text: str, pin: Pin) -> None:
    assert parse_pin("w", text) == pin
    assert parse_pin("w", str(pin)) == pin


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("B ~ 1", "pin 'w': '1' is no time; want e.g. '1ms', in s, ms, us"),
        ("B ~ 0ms", "pin 'w': '0ms' is no time; want e.g. '1ms', in s, ms, us"),
        ("on tp; storage=B", "pin 'w': fixes the storage twice in 'on tp; storage=B'"),
        ("on tp, dp, tp", "pin 'w': names axis 'tp' twice in 'on tp, dp, tp'"),
    ],
)
def test_scopes_and_prices_that_do_not_parse(text: str, message: str) -> None:
    with pytest.raises(BadOptions) as caught:
        parse_pin("w", text)
    assert str(caught.value) == message


def test_scope_allows_any_split_along_its_axes() -> None:
    pin = parse_pin("w", "on tp")
    assert pin.allows(at("(B, S(0))"), GRID)
    assert pin.allows(at("(S(0), S(1; 2|2))"), GRID)
    assert not pin.allows(at("(S(0), B)"), GRID)
    assert pin.allows(at("(S(0), B)"), Mesh(dp=2, tp=1))
    assert not parse_pin("w", "on dp, tp").allows(at("(B, S(0))"), GRID)


def test_scope_needs_an_axis_and_a_dim() -> None:
    with pytest.raises(BadOptions, match="pin 'w': mesh dp=2,tp=2 has no axis 'pp'"):
        check_pin("w", parse_pin("w", "on pp"), MATRIX, GRID)
    scalar = TensorType.parse("f32[1]")
    with pytest.raises(BadOptions) as caught:
        check_pin("w", parse_pin("w", "on tp"), scalar, GRID)
    assert str(caught.value) == (
        "pin 'w' is illegal for f32[1]: it has no dim to split on tp"
    )
