"""Products that the plan says are one are, and what is computed stays."""

from __future__ import annotations

import pytest
import torch
from tests.compiler.ir.small_programs import Builder
from tests.passes.test_fuse_small_ops import show

from partita.compiler.errors import BadPlan
from partita.compiler.ir.joined import lies_beside
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import InputKind, OutputKind, has_info, info
from partita.compiler.local_invariants import local as check_local
from partita.compiler.rules.table import default_rules
from partita.passes.join_products import join_products
from partita.passes.localize import localize
from partita.runtime.virtual import run_all

aten = torch.ops.aten
BOTH = ("a/mm", "b/mm")


def projected() -> LocalProgram:
    """Return two products of views of one tensor, and one of another tensor."""
    b = Builder(Mesh(tp=1))
    x = b.enter("x", "f32[2, 2, 8]", "B")
    y = b.enter("y", "f32[4, 8]", "B")
    for name, columns in (("a", 3), ("b", 5), ("c", 3)):
        w = b.enter(name, f"f32[{columns}, 8]", "B")
        args = (x, [4, 8]), "f32[4, 8]", "B -> B"
        rows = y if name == "c" else b.call(f"{name}/rows", aten.reshape.default, *args)
        turned = f"f32[8, {columns}]"
        t = b.call(f"{name}/t", aten.permute.default, (w, [1, 0]), turned, "B -> B")
        made = f"f32[4, {columns}]"
        mm = b.call(f"{name}/mm", aten.mm.default, (rows, t), made, "B, B -> B")
        b.leave(OutputKind.OUTPUT, name, mm)
    return localize(b.program(), (0,), default_rules, {})


def test_before_and_after() -> None:
    local = projected()
    rest = (
        "permute_default_{0} = permute.default(c, [1, 0])\n"
        "mm_default_2 = mm.default(y, permute_default_{0})\n"
    )
    assert show(local.graph_module.graph) == (
        "reshape_default = reshape.default(x, [4, 8])\n"
        "permute_default = permute.default(a, [1, 0])\n"
        "mm_default = mm.default(reshape_default, permute_default)\n"
        "reshape_default_1 = reshape.default(x, [4, 8])\n"
        "permute_default_1 = permute.default(b, [1, 0])\n"
        "mm_default_1 = mm.default(reshape_default_1, permute_default_1)\n"
        + rest.format(2)
        + "return mm_default, mm_default_1, mm_default_2"
    )
    joined = join_products(local, [BOTH])
    assert show(joined.graph_module.graph) == (
        "reshape_default = reshape.default(x, [4, 8])\n"
        "permute_default = permute.default(a, [1, 0])\n"
        "cat_default = cat.default([a, b], 0)\n"
        "permute_default_1 = permute.default(cat_default, [1, 0])\n"
        "mm_default = mm.default(reshape_default, permute_default_1)\n"
        "slice_tensor = slice.Tensor(mm_default, 1, 0, 3, 1)\n"
        "slice_tensor_1 = slice.Tensor(mm_default, 1, 3, 8, 1)\n"
        "reshape_default_1 = reshape.default(x, [4, 8])\n"
        "permute_default_2 = permute.default(b, [1, 0])\n"
        + rest.format(3)
        + "return slice_tensor, slice_tensor_1, mm_default_2"
    )
    check_local(joined)


def test_what_is_computed_stays_the_same() -> None:
    local = projected()
    generator = torch.Generator().manual_seed(0)
    feeds = {
        (role.kind, role.name): torch.randint(
            -4, 5, type_.shape, generator=generator
        ).float()
        for role, type_ in zip(local.inputs, local.input_types, strict=True)
        if type_ is not None
    }
    assert {kind for kind, _ in feeds} == {InputKind.INPUT}
    joined = join_products(local, [BOTH])
    (wanted,), (found,) = run_all([local], [feeds]), run_all([joined], [feeds])
    for a, b in zip(wanted, found, strict=True):
        assert a is not None
        assert b is not None
        assert torch.equal(a, b)


def test_parts_keep_their_keys() -> None:
    nodes = join_products(projected(), [BOTH]).graph_module.graph.nodes
    keys = [info(node).key for node in nodes if has_info(node)]
    assert {"joined[0]", *BOTH} <= set(keys)
    assert [key for key in keys if lies_beside(key)] == ["joined[0]/1"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (("a/mm", "nowhere"), "'nowhere' is no op of the program"),
        (
            ("a/mm", "c/mm"),
            "'c/mm' and 'a/mm' are no products of one tensor and transposed parameters",
        ),
        (("a/t", "b/t"), "'a/t' and 'a/t' are no products of one tensor"),
    ],
)
def test_what_cannot_be_one_product_is_refused(
    keys: tuple[str, ...], message: str
) -> None:
    with pytest.raises(BadPlan) as caught:
        join_products(projected(), [keys])
    assert str(caught.value).startswith(f"joined[0]: {message}")
