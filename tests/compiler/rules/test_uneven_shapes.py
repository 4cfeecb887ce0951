"""Rows hold for shapes that nobody picks: uneven, empty, smaller than the mesh."""

from collections.abc import Callable
from itertools import accumulate
from math import prod

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.compiler.rules.rule_values import call, ints, x

from partita.compiler.ir.mesh import Mesh
from partita.compiler.rules.table import default_rules
from partita.testing.prover import Sample, prove

SIZES: st.SearchStrategy[int] = st.sampled_from((0, 1, 2, 3, 4, 5, 7, 8))
PARTS: st.SearchStrategy[int] = st.integers(1, 5)
MESHES = st.sampled_from((Mesh(a=2), Mesh(a=3), Mesh(a=5), Mesh(a=2, b=2)))
Draw = st.DrawFn


@st.composite
def shapes(draw: Draw, least: int = 0, most: int = 3) -> tuple[int, ...]:
    return tuple(draw(st.lists(SIZES, min_size=least, max_size=most)))


@st.composite
def elementwise(draw: Draw) -> Sample:
    shape = draw(shapes(1))
    narrow = tuple(draw(st.sampled_from((1, size))) for size in shape)
    cut = draw(st.integers(0, len(shape)))
    op = draw(st.sampled_from(("add.Tensor", "mul.Tensor", "maximum", "where.self")))
    if op == "where.self":
        return call(op, x(*shape) > 0, x(*narrow), x(*shape[cut:]))
    return call(op, x(*shape), x(*narrow[cut:]))


@st.composite
def reductions(draw: Draw) -> Sample:
    shape = draw(shapes(1))
    dim = draw(st.integers(-len(shape), len(shape) - 1))
    keep = draw(st.booleans())
    if shape[dim] == 0 or draw(st.booleans()):
        return call("sum.dim_IntList", x(*shape), [dim], keep)
    return call(draw(st.sampled_from(("amax", "amin"))), x(*shape), [dim], keep)


@st.composite
def products(draw: Draw) -> Sample:
    b, m, k, n = (draw(SIZES) for _ in range(4))
    if draw(st.booleans()):
        return call("bmm", x(b, m, k), x(b, k, n))
    bias = draw(st.sampled_from(((), (1,), (n,), (m, n), (1, n), (m, 1))))
    return call("addmm", x(*bias), x(m, k), x(k, n))


@st.composite
def reshapes(draw: Draw) -> Sample:
    parts = draw(st.lists(PARTS, min_size=1, max_size=4))
    old, new = (_grouped(draw, parts) for _ in range(2))
    if draw(st.booleans()):
        new = [*new[::-1]]
    return call("reshape", x(*old), new)


def _grouped(draw: Draw, parts: list[int]) -> list[int]:
    """Return neighbours multiplied together, cut at random places."""
    cuts = [draw(st.booleans()) for _ in parts]
    groups: list[list[int]] = []
    for part, is_cut in zip(parts, cuts, strict=True):
        if is_cut or not groups:
            groups.append([])
        groups[-1].append(part)
    return [prod(group) for group in groups]


@st.composite
def pieces(draw: Draw) -> tuple[list[int], list[int], int]:
    """Return a shape, the sizes of the pieces of one of its dims, and which it is."""
    shape = list(draw(shapes(1)))
    dim = draw(st.integers(0, len(shape) - 1))
    sizes = draw(st.lists(SIZES, min_size=1, max_size=3))
    return shape, sizes, dim


@st.composite
def concatenations(draw: Draw) -> Sample:
    shape, sizes, dim = draw(pieces())
    parts = [x(*shape[:dim], size, *shape[dim + 1 :]) for size in sizes]
    return call("cat", parts, draw(st.sampled_from((dim, dim - len(shape)))))


@st.composite
def splits(draw: Draw) -> Sample:
    shape, sizes, dim = draw(pieces())
    whole = x(*shape[:dim], sum(sizes), *shape[dim + 1 :])
    return call("split_with_sizes", whole, sizes, dim)


@st.composite
def slices(draw: Draw) -> Sample:
    shape, sizes, dim = draw(pieces())
    start, *_ = bounds = [0, *accumulate(sizes)]
    start, stop = sorted((draw(st.sampled_from(bounds)), bounds[-1]))
    whole = x(*shape[:dim], sum(sizes), *shape[dim + 1 :])
    step = draw(st.sampled_from((1, 2)))
    return call("slice.Tensor", whole, dim, start, stop, step)


@st.composite
def along_a_dim(draw: Draw) -> Sample:
    shape = draw(shapes(1))
    dim = draw(st.integers(-len(shape), len(shape) - 1))
    if draw(st.booleans()):
        return call("cumsum", x(*shape), dim)
    return call("_softmax", x(*shape), dim, False)


@st.composite
def lookups(draw: Draw) -> Sample:
    rows, columns = draw(st.integers(1, 8)), draw(SIZES)
    ids = ints(0, rows, *draw(shapes(0, 2)))
    if draw(st.booleans()):
        return call("embedding", x(rows, columns), ids)
    return call("index.Tensor", x(rows, columns), [ids])


def holds_for(kind: Callable[[], st.SearchStrategy[Sample]]) -> Callable[..., None]:
    """Return a test that proves the rows of one kind of op on drawn samples."""

    @settings(max_examples=150, derandomize=True)
    @given(kind(), MESHES)
    def test(sample: Sample, mesh: Mesh) -> None:
        rule = default_rules.get(sample.op)
        assert rule is not None
        assert prove(rule, sample, mesh) >= 1

    return test


test_elementwise_rows = holds_for(elementwise)
test_rows_of_reductions = holds_for(reductions)
test_rows_of_products = holds_for(products)
test_rows_of_reshapes = holds_for(reshapes)
test_rows_of_concatenations = holds_for(concatenations)
test_rows_of_splits = holds_for(splits)
test_rows_of_slices = holds_for(slices)
test_rows_along_a_dim = holds_for(along_a_dim)
test_rows_of_lookups = holds_for(lookups)
