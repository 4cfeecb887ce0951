"""Expressions of 0-1 variables: what "either" and "both" come to, everywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import highspy
import pytest

from partita.compiler.search.highs import IMPLIED, make_highs, run_highs
from partita.compiler.search.linear import (
    NO,
    YES,
    Linear,
    LinearProgram,
    total,
    value_of,
)

Make = Callable[[LinearProgram, list[Linear]], Linear]
BITS = list(product((0, 1), repeat=2))


def least_and_most(make: Make, bits: Sequence[int]) -> tuple[float, float]:
    """Return the least and the most that an expression of given 0-1 values may be."""
    found: list[float] = []
    for sign in (1.0, -1.0):
        program = LinearProgram()
        parts = [program.choice() for _ in bits]
        made = make(program, parts)
        for part, bit in zip(parts, bits, strict=True):
            program.require(part, bit, bit)
        program.charge(made, sign)
        highs = make_highs(10.0, 1, 0.0)
        highs.passModel(program.to_highs(1.0))
        values = run_highs(highs).values
        assert values is not None
        found.append(value_of(made, values.tolist()))
    return found[0], found[1]


@pytest.mark.parametrize("bits", BITS)
def test_either_is_at_least_one_where_a_part_is(bits: tuple[int, int]) -> None:
    least, _ = least_and_most(lambda program, parts: program.either(parts), bits)
    assert least == pytest.approx(max(bits))


@pytest.mark.parametrize("bits", BITS)
def test_both_is_at_most_zero_where_one_is_not(bits: tuple[int, int]) -> None:
    least, _ = least_and_most(
        lambda program, parts: program.both(parts[0], parts[1]), bits
    )
    assert max(least, 0.0) == pytest.approx(min(bits))


@pytest.mark.parametrize("bits", BITS)
def test_where_they_are_exact_nothing_else_is_possible(bits: tuple[int, int]) -> None:
    both = least_and_most(
        lambda p, parts: p.both(parts[0], parts[1], is_exact=True), bits
    )
    either = least_and_most(lambda p, parts: p.either(parts, is_exact=True), bits)
    assert both == pytest.approx((min(bits), min(bits)))
    assert either == pytest.approx((max(bits), max(bits)))


def test_what_is_known_takes_no_column() -> None:
    program = LinearProgram()
    one, other = program.choice(), program.choice()
    assert program.either([]) == NO
    assert program.either([NO, one]) == one
    assert program.either([one, YES, other]) == YES
    assert program.both(one, NO) == program.both(NO, one) == NO
    assert program.both(one, YES) == program.both(YES, one) == one
    assert program.both(one, one) == one
    assert program.num_columns == 2


def test_what_is_asked_twice_takes_one_column() -> None:
    program = LinearProgram()
    one, other = program.choice(), program.choice()
    either = program.either([one, other])
    assert program.either([other, one, one]) == either
    assert program.either([one, other], is_exact=True) != either
    both = program.both(one, other, is_exact=True)
    assert program.both(other, one, is_exact=True) == both
    assert program.both(one, either, is_exact=True) != both
    assert program.num_columns == 6


def test_either_of_what_may_be_negative_is_not_negative() -> None:
    def either(program: LinearProgram, parts: list[Linear]) -> Linear:
        return program.either([parts[0] - parts[1]])

    assert least_and_most(either, (0, 1))[0] == pytest.approx(0.0)
    assert least_and_most(either, (1, 0))[0] == pytest.approx(1.0)


def test_a_name_equals_what_it_names() -> None:
    for bits in ((0, 0), (0, 1), (1, 0)):
        named = least_and_most(lambda p, parts: p.named(total(parts)), bits)
        assert named == pytest.approx((sum(bits), sum(bits)))
    program = LinearProgram()
    assert program.named(one := program.choice()) == one


def test_what_is_yes_or_no_is_known_to_be_whole() -> None:
    program = LinearProgram()
    parts = [program.choice(), program.choice()]
    program.either(parts)
    program.column(above=3.0)
    assert [*program.to_highs(1.0).integrality_] == [
        highspy.HighsVarType.kInteger,
        highspy.HighsVarType.kInteger,
        IMPLIED,
        highspy.HighsVarType.kContinuous,
    ]


def test_sums_add_constants_and_factors() -> None:
    x, y = Linear(1.0, {0: 2.0}), Linear(-3.0, {0: 1.0, 1: 4.0})
    assert x + y == total([x, y]) == Linear(-2.0, {0: 3.0, 1: 4.0})
    assert (x - y) * 2.0 == Linear(8.0, {0: 2.0, 1: -8.0})
    assert value_of(x + y, [1.0, 0.5]) == 3.0


def test_a_row_bounds_what_is_beside_the_constant() -> None:
    def bounded(program: LinearProgram, parts: list[Linear]) -> Linear:
        column = program.column(above=9.0)
        program.require(column + YES + YES, most=5.0)
        program.require(column + parts[0] - YES, least=0.5)
        return column

    assert least_and_most(bounded, (1,)) == pytest.approx((0.5, 3.0))
    assert least_and_most(bounded, (0,)) == pytest.approx((1.5, 3.0))


def test_a_charge_adds_to_what_columns_cost() -> None:
    program = LinearProgram()
    x, y = program.column(cost=1.0), program.choice()
    program.charge(x * 2.0 + y + YES, 3.0)
    assert program.costs == [7.0, 3.0]
    program.require(x + y, 1.0)
    highs = make_highs(10.0, 1, 0.0)
    highs.passModel(program.to_highs(10.0))
    assert run_highs(highs).bound == pytest.approx(30.0)
