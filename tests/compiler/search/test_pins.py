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
from partita.compiler.search.pins import Pin, check_pin, parse_pin, parse_pins

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
            "pin 'w' is illegal for f32[8, 4]: placement (S(0),) has 1 entries, mesh "
            "dp=2,tp=2 has 2 axes; give one entry per axis",
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


KNOWN = ("h.0.attn.weight", "h.0.mlp.weight", "h.1.attn.weight", "input_ids")


def test_pins_by_name() -> None:
    assert parse_pins({"input_ids": "S(0)"}, KNOWN) == {"input_ids": Pin(at("S(0)"))}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("h.0.attn.weigth", "; did you mean 'h.0.attn.weight', 'h.1.attn.weight'"),
        ("inputs_ids", "; did you mean 'input_ids'?"),
        ("zzz", ""),
    ],
)
def test_unknown_name_is_refused_with_the_closest(name: str, hint: str) -> None:
    with pytest.raises(BadOptions) as caught:
        parse_pins({name: "B"}, KNOWN)
    message = f"pin {name!r} names no parameter, buffer, input or node{hint}"
    assert str(caught.value).startswith(message)
    assert bool(hint) == ("did you mean" in str(caught.value))
