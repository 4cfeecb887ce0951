from itertools import pairwise
from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.compiler.rules.rule_values import call

from partita.compiler.ir.mesh import Mesh
from partita.compiler.rules.table import default_rules
from partita.testing.prover import Sample, call_of, prove


def dims(sample: Sample) -> str:
    rule = default_rules.get(sample.op)
    assert rule is not None
    return rule.dims_of(call_of(sample))


def x(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ((4, 6), (4, 6), "f0:4 f1:6 -> f0:4 f1:6"),
        ((4, 6), (24,), "f0:4 f1:6 -> (f0:4 f1:6)"),
        ((8, 36), (2, 4, 3, 3, 4), "(f0:2 f1:4) (f2:3 f3:3 f4:4) -> "
         "f0:2 f1:4 f2:3 f3:3 f4:4"),
        ((4, 1, 6), (1, 4, 6, 1), "f0:4 1 f1:6 -> 1 f0:4 f1:6 1"),
        ((1,), (), "1 -> "),
        ((), (1, 1), "? -> 1 1"),
        ((4, 6), (8, 3), "f0:4 (f1:2 f2:3) -> (f0:4 f1:2) f2:3"),
        ((3, 4), (4, 3), "l0^:3 l1^:4 -> r0^:4 r1^:3"),
        ((3, 8), (4, 6), "l0^:3 (l1^:4 f0:2) -> r0^:4 (r1^:3 f0:2)"),
        ((0, 4), (0,), "? -> ?"),
    ],
)  # fmt: skip
def test_reshape_finds_nested_factors(
    old: tuple[int, ...], new: tuple[int, ...], text: str
) -> None:
    assert dims(call("reshape", x(*old), list(new))) == text


@pytest.mark.parametrize(
    ("sample", "text"),
    [
        (call("permute", x(2, 3, 4), [2, 0, 1]), "d0 d1 d2 -> d2 d0 d1"),
        (call("sum.dim_IntList", x(2, 3), [-1]), "d0 d1 -> d0"),
        (call("sum.dim_IntList", x(2, 3), [0], True), "d0 d1 -> 1 d1"),
        (call("argmax", x(2, 3), 1), "d0 ? -> d0"),
        (call("_softmax", x(2, 3), -1, False), "d0 d1! -> d0 d1!"),
        (call("select.int", x(2, 3), 0, 1), "d0! d1 -> d1"),
        (call("select_backward", x(3), [2, 3], 0, 1), "d1 -> d0! d1"),
        (call("slice.Tensor", x(2, 3), 1, 0, 2, 1), "d0 d1! -> d0 ?"),
        (call("constant_pad_nd", x(2, 3), [1, -1]), "d0 ? -> d0 ?"),
        (call("cat", [x(2, 3), x(2, 1)], 1), "d0 n{3}, d0 n{1} -> d0 n{3|1}"),
        (call("gather", x(4, 3), 1, x(4, 2).long()), "d0 n!, d0 i -> d0 i"),
        (call("gather", x(4, 3), 1, x(2, 2).long()), "? n!, ? i -> ? i"),
        (
            call("index.Tensor", x(4, 3), [None, x(2, 5).long()]),
            "d0 d1!, i0 i1 -> d0 i0 i1",
        ),
        (call("addmm", x(1, 8), x(4, 6), x(6, 8)), "m n, m k, k n -> m n"),
        (call("addmm", x(8), x(4, 6), x(6, 8)), "n, m k, k n -> m n"),
        (
            call("native_layer_norm", x(2, 3), [3], None, None, 1e-5),
            "d0 n0! -> d0 n0!, d0 1, d0 1",
        ),
    ],
    ids=lambda value: value.op if isinstance(value, Sample) else "",
)
def test_dims_follow_the_arguments(sample: Sample, text: str) -> None:
    assert dims(sample) == text


@st.composite
def regroupings(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Draw two shapes of as many elements: products of one list of small factors."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 4, 5, 6, 8]), max_size=4))

    def grouped(order: list[int]) -> list[int]:
        cuts = draw(st.sets(st.integers(0, len(order)), max_size=len(order) + 1))
        bounds = [0, *sorted(cuts), len(order)]
        return [prod(order[low:high]) for low, high in pairwise(bounds) if low < high]

    return grouped(sizes), grouped(draw(st.permutations(sizes)))


@given(
    regroupings(),
    st.sampled_from([Mesh(a=2), Mesh(a=3), Mesh(a=4), Mesh(a=2, b=2), Mesh(a=2, b=3)]),
)
@settings(max_examples=60, deadline=None)
def test_reshape_of_any_shapes_holds(
    shapes: tuple[list[int], list[int]], mesh: Mesh
) -> None:
    old, new = shapes
    rule = default_rules.get("aten.reshape.default")
    assert rule is not None
    tensor = torch.arange(float(prod(old))).double().reshape(old)

    assert prove(rule, call("reshape", tensor, new), mesh) >= 1
