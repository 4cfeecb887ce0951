"""Rows are broken on purpose, one at a time: the prover catches every one."""

from dataclasses import replace

import pytest
from tests.compiler.rules.rule_samples import samples
from tests.compiler.rules.rule_values import call, ints, positive, x

from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Reduction
from partita.compiler.rules.rule import Rule
from partita.compiler.rules.table import default_rules
from partita.testing.prover import RuleDisproved, prove

# On square tensors no size gives a mistake away: figures must.
SQUARE = (
    call("mm", x(4, 4), x(4, 4)),
    call("bmm", x(4, 4, 4), x(4, 4, 4)),
    call("mv", x(4, 4), x(4)),
    call("select.int", x(4, 4, 4), 1, 3),
    call("embedding", x(4, 4), ints(0, 4, 4)),
    call("avg_pool2d", x(2, 4, 4, 4), [3, 3], [1, 1], [1, 1]),
    call("native_layer_norm", x(4, 4, 4), [4], x(4), x(4), 1e-5),
    call("add.Tensor", x(4, 4), x(4, 4)),
    call("mul.Tensor", x(4, 4), x(4, 4)),
    call("div.Tensor", x(4, 4), positive(4, 4)),
)
SAMPLES = samples() | {sample.op: [sample] for sample in SQUARE}


def broken(op: str, what: str, **columns: object) -> object:
    """Return a row of the table with some columns changed; ``what`` is the mistake."""
    rule = default_rules.get(f"aten.{op}")
    assert rule is not None
    return pytest.param(replace(rule, **columns), id=f"{op}: {what}")


MUTATIONS = [
    # A reduction dropped, added or of another kind.
    broken("sum.default", "a sum taken for a maximum", reduce=Reduction.MAX),
    broken("amax.default", "a maximum taken for a sum", reduce=Reduction.SUM),
    broken("amin.default", "a minimum taken for a maximum", reduce=Reduction.MAX),
    broken("mm.default", "the same on each part of k", dims="m k, k n -> m n =k"),
    broken("prod.default", "a product taken for a sum", dims="* -> "),
    broken("dot.default", "a sum dropped", dims="k, k ->  =k"),
    # A dim off by one.
    broken("mm.default", "the result transposed", dims="m k, k n -> n m"),
    broken("bmm.default", "k is the wrong dim", dims="b m k, b n k -> b m n"),
    broken("mv.default", "the wrong dim is reduced", dims="k m, k -> m"),
    broken("select.int", "the wrong dim is left out", dims="d0 ? d1 -> d1 d0"),
    broken("embedding.default", "rows taken for columns", dims="d ?, * -> * d"),
    # A linearity that is not there, or is another.
    broken("relu.default", "not linear", linear="0"),
    broken("gelu_backward.default", "linear in the input", linear="0*1"),
    broken("add.Tensor", "a product taken for a sum", linear="0*1"),
    broken("mul.Tensor", "a sum taken for a product", linear="0+1"),
    broken("addmm.default", "the bias left out", linear="1*2"),
    broken("div.Tensor", "linear in the divisor", linear="0*1"),
    # A factor made splittable.
    broken("_softmax.default", "the dim it goes along", dims="* -> *"),
    broken("cumsum.default", "the dim it goes along", dims="* -> *"),
    broken("sort.default", "the dim it goes along", dims="* -> *, *"),
    broken("avg_pool2d.default", "rows of an image", dims="* y ? -> * y ?"),
    broken("tril.default", "rows of a matrix", dims="* m ? -> * m ?"),
    broken("native_layer_norm.default", "the dim that is normalized",
           dims="b s n, n, n -> b s n, b s 1, b s 1"),
    # A size that is not made local.
    broken("full.default", "its shape stays the whole one", localize=""),
    broken("split_with_sizes.default", "its pieces stay whole", localize=""),
]  # fmt: skip


def test_there_are_enough_mistakes_of_distinct_rows() -> None:
    assert len(MUTATIONS) >= 20


@pytest.mark.parametrize("rule", MUTATIONS)
def test_mistake_is_caught(rule: Rule) -> None:
    original = default_rules.get(rule.op)
    assert original is not None
    assert rule != original

    caught = 0
    for sample in SAMPLES[rule.op]:
        for mesh in (Mesh(a=2), Mesh(a=2, b=2)):
            prove(original, sample, mesh)
            try:
                prove(rule, sample, mesh)
            except RuleDisproved:
                caught += 1

    assert caught > 0
