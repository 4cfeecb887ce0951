"""The bytes of planned boxings against what any boxing must move.

With links that cost by bytes alone the plan is as good as the steps allow, so what is
above the bound is what the steps cannot do:

* shards that a gather or scatter pads are sent with their padding: worst where a dim
  is shorter than its axis, (n - 1) / 1 of what is needed;
* steps go along one axis at a time: an exchange that turns over two axes at once, or a
  dim split by two axes that is to be split by one, goes by a placement between;
* what is too small to split, a number above all, is reduced by all ranks.

A sum of maxima that becomes partial again has a bound of its own weakness: see there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from itertools import product
from math import inf

import pytest
import torch
from tests.compiler.cost.boxing_bounds import least_words
from tests.compiler.cost.boxing_pairs import (
    MESHES,
    SHAPES,
    Shape,
    every_pair,
    some_pairs,
)

from partita.compiler.cost.boxing import Steps, cheapest_steps
from partita.compiler.hardware.profile import (
    CollectiveCost,
    CollectiveKind,
    Device,
    Hardware,
    Link,
)
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Partial, Placement, Split
from partita.compiler.ir.tensor_type import TensorType

BYTES_ALONE = Hardware(
    name="bytes-alone",
    source="made up: a second a byte, and everything else for nothing",
    device=Device("cpu", {"f64": 1.0}, inf, 1 << 30, 0.0),
    links=(
        Link("wire", None, {kind: CollectiveCost(0.0, 1.0) for kind in CollectiveKind}),
    ),
)
ITEMSIZE = 8
Pairs = Callable[[Shape, Mesh], Iterator[tuple[Placement, Placement]]]
TWO, FOUR, SQUARE, FLAT_CUBE = MESHES


def planned(shape: Shape, source: Placement, target: Placement, mesh: Mesh) -> Steps:
    type = TensorType(shape, torch.float64)
    return cheapest_steps(type, source, target, mesh, BYTES_ALONE)


@pytest.mark.parametrize(
    ("shape", "source", "target", "mesh", "words"),
    [
        ((8, 4), "S(0)", "B", FOUR, 24),  # three quarters of 32 are missing
        ((8, 4), "S(0)", "S(1)", FOUR, 6),  # three quarters of a shard of 8
        ((5, 3), "S(0)", "B", FOUR, 15),  # 2, 2, 1, 0 rows: the last has nothing
        ((8, 4), "P(sum)", "B", FOUR, 48),  # 2 * 3/4 * 32
        ((8, 4), "P(max)", "S(0)", FOUR, 24),  # each summand of three quarters leaves
        ((8, 4), "P(sum)", "P(max)", FOUR, 24),  # each sum is made at some rank
        ((8, 4), "(P(sum), P(sum))", "(B, B)", SQUARE, 48),
        ((8, 4), "(S(0), S(1))", "(S(1), S(0))", SQUARE, 8),  # two ranks swap shards
        ((8, 4), "(P(sum), B)", "(B, B)", SQUARE, 32),  # ranks exchange all they have
        ((8, 4), "(S(0), B)", "(S(0), S(1))", SQUARE, 0),
        ((8, 4), "S(0)", "P(min)", FOUR, 0),
        ((), "P(sum)", "B", FOUR, Fraction(3, 2)),
    ],
)
def test_the_bound_is_what_one_works_out(
    shape: Shape, source: str, target: str, mesh: Mesh, words: Fraction
) -> None:
    ends = Placement.parse(source), Placement.parse(target)
    assert least_words(shape, *ends, mesh) == words


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("mesh", [TWO, FOUR, SQUARE], ids=str)
def test_nothing_is_moved_where_nothing_need_be(mesh: Mesh, shape: Shape) -> None:
    moved = [
        (str(source), str(target))
        for source, target in every_pair(shape, mesh)
        if not least_words(shape, source, target, mesh)
        and not (is_nested(source) and target.has_partial)
        and planned(shape, source, target, mesh).bytes
    ]
    # Here an axis would have to cut what a later one has cut in finer pieces.
    left = [
        ("(B, S(0; 4|4))", "(S(0), S(0))"),
        ("(B, S(0; 4|4))", "(S(0), S(0; 4|4))"),
    ]
    assert moved == (left if mesh == SQUARE and shape == (8, 4) else [])


def is_nested(source: Placement) -> bool:
    """Whether ``source`` is a sum of maxima or the like, whose order no bound asks."""
    return len({s for s in source.shardings if isinstance(s, Partial)}) > 1


def class_of(shape: Shape, source: Placement, target: Placement) -> tuple[str, str]:
    """Return how the tensor is cut, and what is asked for."""
    splits = [
        sharding
        for sharding in (*source.shardings, *target.shardings)
        if isinstance(sharding, Split)
    ]
    cut = "even" if shape == (8, 4) else "uneven"
    if any(split.segments for split in splits):
        cut = "segments"
    if target.has_partial:
        return cut, "to partial"
    return cut, "reduction" if source.has_partial else "copy"


Measured = dict[tuple[str, str], tuple[int, int, Fraction]]


def measured(
    meshes: Iterable[Mesh], shapes: Iterable[Shape], choose: Pairs
) -> Measured:
    """Return per class how many pairs there are, how many at the bound, the worst."""
    pairs: Counter[tuple[str, str]] = Counter()
    at_bound: Counter[tuple[str, str]] = Counter()
    worst: dict[tuple[str, str], Fraction] = {}
    for mesh, shape in product(meshes, shapes):
        for source, target in choose(shape, mesh):
            least = ITEMSIZE * least_words(shape, source, target, mesh)
            num_bytes = planned(shape, source, target, mesh).bytes
            name = f"{shape} {source} -> {target} on {mesh}"
            assert num_bytes >= least, f"{name}: {num_bytes} of {least} bytes"
            kind = class_of(shape, source, target)
            pairs[kind] += 1
            at_bound[kind] += num_bytes == least
            ratio = num_bytes / least if least else Fraction(1)
            worst[kind] = max(worst.get(kind, ratio), ratio)
    return {kind: (n, at_bound[kind], worst[kind]) for kind, n in pairs.items()}


def test_on_one_axis_bytes_are_the_bound_but_for_padding() -> None:
    assert measured((TWO, FOUR), SHAPES, every_pair) == {
        ("even", "copy"): (12, 12, 1),
        ("even", "reduction"): (18, 18, 1),
        ("even", "to partial"): (30, 30, 1),
        ("uneven", "copy"): (60, 56, 3),  # a dim of one index: S -> B on four
        ("uneven", "reduction"): (96, 84, Fraction(3, 2)),  # the same: P -> S
        ("uneven", "to partial"): (168, 132, 2),  # a number: P(sum) -> P(max)
        ("segments", "copy"): (56, 54, Fraction(5, 4)),
        ("segments", "reduction"): (24, 18, Fraction(5, 4)),
        ("segments", "to partial"): (24, 24, 1),
    }


def test_on_two_axes_bytes_are_within_the_ratios_stated() -> None:
    assert measured((SQUARE,), SHAPES, every_pair) == {
        ("even", "copy"): (72, 56, Fraction(8, 3)),  # (S(0), S(0)) -> (S(1), S(1))
        ("even", "reduction"): (243, 189, Fraction(3, 2)),  # (P, B) -> (S(0), S(0))
        ("even", "to partial"): (945, 825, 2),  # (B, S(0)) -> (P(sum), S(1))
        ("uneven", "copy"): (360, 302, 3),
        ("uneven", "reduction"): (1230, 825, 2),
        ("uneven", "to partial"): (4950, 3237, 4),  # a number
        ("segments", "copy"): (782, 431, 4),  # (S(0), S(0)) -> (S(1), S(0; 4|4))
        ("segments", "reduction"): (702, 333, 2),
        ("segments", "to partial"): (702, 576, 3),
    }


def test_an_axis_of_one_rank_changes_no_ratio() -> None:
    # On it P(sum) is a copy, and so reductions are copies on the other two.
    assert measured((FLAT_CUBE,), ((8, 4), (5, 3)), some_pairs) == {
        ("even", "copy"): (72, 56, Fraction(8, 3)),
        ("even", "reduction"): (207, 163, Fraction(8, 3)),
        ("even", "to partial"): (713, 621, Fraction(8, 3)),
        ("uneven", "copy"): (72, 50, 3),
        ("uneven", "reduction"): (207, 119, 3),
        ("uneven", "to partial"): (713, 527, 3),
    }


def test_even_shards_that_change_along_one_axis_take_no_more_than_needed() -> None:
    shape = (8, 4)
    pairs = [
        (source, target)
        for source, target in every_pair(shape, SQUARE)
        if class_of(shape, source, target)[0] == "even"
        and is_simple(source)
        and is_simple(target)
        and source
        in (target.with_axis(axis, source.shardings[axis]) for axis in (0, 1))
    ]
    assert len(pairs) == 212
    for source, target in pairs:
        least = ITEMSIZE * least_words(shape, source, target, SQUARE)
        assert planned(shape, source, target, SQUARE).bytes == least, (source, target)


def is_simple(placement: Placement) -> bool:
    """Whether no dim is split by two axes, and no reduction goes over another."""
    splits = [s for s in placement.shardings if isinstance(s, Split)]
    return len(splits) == len(set(splits)) and not is_nested(placement)
