"""Pins find what they name; the closest counts, and doubt is an error."""

from __future__ import annotations

import pytest

from partita.compiler.errors import BadOptions
from partita.compiler.search.pin_names import Named, find_pins


def parameter(*names: str) -> Named:
    return Named(f"parameter:{names[0]}", names)


THINGS = (
    parameter("h.0.attn.weight"),
    parameter("h.0.mlp.weight", "tied.weight"),
    parameter("h.1.mlp.weight"),
    parameter("h.1.mlp.bias"),
    Named("input:input_ids", ("input_ids",)),
    Named("h.0.mlp/mm/0"),
    Named("h.1.mlp/mm/0"),
    Named("h.1.mlp/mm/0~grad/mm/0"),
)


def named_by(pattern: str) -> list[str]:
    """Return the titles of what a pin names."""
    return [THINGS[at].title for at in find_pins({pattern: "B"}, THINGS)]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("input_ids", ["input_ids"]),
        ("tied.weight", ["h.0.mlp.weight"]),
        ("tied.*", ["h.0.mlp.weight"]),
        ("parameter:h.1.mlp.bias", ["h.1.mlp.bias"]),
        ("h.*.mlp.*", ["h.0.mlp.weight", "h.1.mlp.weight", "h.1.mlp.bias"]),
        ("h.*.mlp", ["h.0.mlp.weight", "h.1.mlp.weight", "h.1.mlp.bias"]),
        ("h.1", ["h.1.mlp.weight", "h.1.mlp.bias"]),
        ("h.[1-9].*.bias", ["h.1.mlp.bias"]),
        ("*", [thing.title for thing in THINGS[:5]]),
        ("parameter:*", [thing.title for thing in THINGS[:4]]),
        ("h.?.mlp/*", ["h.0.mlp/mm/0", "h.1.mlp/mm/0"]),
        ("*~grad/*", ["h.1.mlp/mm/0~grad/mm/0"]),
        ("h.1.mlp/mm/0~grad/mm/0", ["h.1.mlp/mm/0~grad/mm/0"]),
    ],
)
def test_names_patterns_and_modules(pattern: str, names: list[str]) -> None:
    assert named_by(pattern) == names


def test_the_closest_counts_alone() -> None:
    pins = {
        "h.*": "S(0)",
        "h.*.mlp": "S(1)",
        "h.*.mlp.b*": "S(2)",
        "h.1.mlp.weight": "use=B",
        "*": "B",
    }
    found = find_pins(pins, THINGS)
    assert {THINGS[at].title: named.name for at, named in found.items()} == {
        "h.0.attn.weight": "h.*",
        "h.0.mlp.weight": "h.*.mlp",
        "h.1.mlp.weight": "h.1.mlp.weight",
        "h.1.mlp.bias": "h.*.mlp.b*",
        "input_ids": "*",
    }


def test_pins_as_close_as_each_other_agree() -> None:
    pins = {"h.1.*.weight": "S(0)", "h.*.mlp.weight": "use=B"}
    assert [named.name for named in find_pins(pins, THINGS).values()] == [
        "h.*.mlp.weight",
        "h.*.mlp.weight",
    ]
    agreeing = {"*.mlp.weight": "S(0)", "h.*lp.weight": "S(0)"}
    assert len(find_pins(agreeing, THINGS)) == 2


@pytest.mark.parametrize(
    ("first", "second", "thing"),
    [
        ("*.mlp.weight", "h.*lp.weight", "h.0.mlp.weight"),
        ("*.0.mlp/mm/0", "h.*.mlp/mm/0", "h.0.mlp/mm/0"),
    ],
)
def test_pins_that_contradict_each_other_are_refused(
    first: str, second: str, thing: str
) -> None:
    with pytest.raises(BadOptions) as caught:
        find_pins({first: "S(0)", second: "S(1)"}, THINGS)
    assert str(caught.value) == (
        f"pins {first!r} and {second!r} differ and name {thing!r} equally closely; pin "
        "it by its own name"
    )


def test_two_names_of_one_thing_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(BadOptions) as caught:
        find_pins({"h.0.mlp.weight": "S(0)", "tied.weight": "S(1)"}, THINGS)
    assert str(caught.value) == (
        "pins 'h.0.mlp.weight' and 'tied.weight' differ and are both of "
        "'h.0.mlp.weight', which is held once; leave one of them out"
    )


def test_doubt_that_a_closer_pin_settles_is_none() -> None:
    pins = {"*.mlp.weight": "S(0)", "h.*lp.weight": "S(1)"}
    exact = {"h.0.mlp.weight": "B", "h.1.mlp.weight": "B"}
    assert {n.name for n in find_pins(pins | exact, THINGS).values()} == {*exact}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("h.0.attn.weigth", "; did you mean 'h.0.attn.weight'"),
        ("inputs_ids", "; did you mean 'input_ids'"),
        ("h.*.mpl.weight", "; did you mean 'h.*.mlp.weight'"),
        ("h.0.mpl/mm/0", "; did you mean 'h.0.mlp/mm/0'"),
        ("zzz", ""),
    ],
)
def test_what_names_nothing_is_refused_with_the_closest(name: str, hint: str) -> None:
    with pytest.raises(BadOptions) as caught:
        find_pins({name: "B"}, THINGS)
    message = f"pin {name!r} names no parameter, buffer, input or node{hint}"
    assert str(caught.value).startswith(message)
    assert bool(hint) == ("did you mean" in str(caught.value))
