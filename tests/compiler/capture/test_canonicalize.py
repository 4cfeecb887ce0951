"""One form for each of the many ways to view, cut and join."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.compiler.capture import small_models as small
from tests.compiler.ir.small_programs import Builder, show
from torch import Tensor, fx

from partita.compiler.capture.canonicalize import canonicalize
from partita.compiler.capture.capture import capture
from partita.compiler.errors import CaptureFailed
from partita.compiler.ir.program import InputKind, OutputKind, info, op_name

aten = torch.ops.aten

REWRITES: list[tuple[Any, tuple[Any, ...], str, str, tuple[Any, ...]]] = [
    (aten.view.default, ([2, -1],), "f32[2, 12]", "reshape.default", ([2, 12],)),
    (aten._unsafe_view.default, ([24],), "f32[24]", "reshape.default", ([24],)),
    (aten.unsqueeze.default, (-1,), "f32[4, 6, 1]", "reshape.default", ([4, 6, 1],)),
    (aten.t.default, (), "f32[6, 4]", "permute.default", ([1, 0],)),
    (aten.transpose.int, (0, -1), "f32[6, 4]", "permute.default", ([1, 0],)),
    (aten.permute.default, ([-1, 0],), "f32[6, 4]", "permute.default", ([1, 0],)),
    (
        aten.expand.default,
        ([3, -1, 6],),
        "f32[3, 4, 6]",
        "expand.default",
        ([3, 4, 6],),
    ),
    (aten.slice.Tensor, (), "f32[4, 6]", "slice.Tensor", (0, 0, 4, 1)),
    (aten.slice.Tensor, (-1, 1), "f32[4, 5]", "slice.Tensor", (1, 1, 6, 1)),
    (aten.slice.Tensor, (1, -3, -1), "f32[4, 2]", "slice.Tensor", (1, 3, 5, 1)),
    (aten.slice.Tensor, (1, 0, 99, 2), "f32[4, 3]", "slice.Tensor", (1, 0, 6, 2)),
]


def run(graph: fx.Graph, *values: Tensor) -> Any:
    return fx.GraphModule(torch.nn.Module(), graph)(*values)


@pytest.mark.parametrize(
    ("op", "rest", "type"),
    [
        (aten.transpose.int, (0, 0), "f32[]"),
        (aten.squeeze.default, (), "f32[]"),
        (aten.squeeze.dim, (0,), "f32[4, 6]"),
        (aten.permute.default, ([0, -1],), "f32[4, 6]"),
        (aten.view.default, ([4, -1],), "f32[4, 6]"),
    ],
)
def test_a_view_of_all_as_it_is_is_none(
    op: Any, rest: tuple[Any, ...], type: str
) -> None:
    b = Builder()
    x = b.enter("x", type)
    b.leave(OutputKind.OUTPUT, "y", b.call("view/0", op, (x, *rest), type))
    program = canonicalize(b.program())
    assert not [*program.calls()]
    assert program.graph.output_node().args[0] == tuple(
        node for node, _ in program.placeholders()
    )


@pytest.mark.parametrize(
    ("op", "rest", "new"),
    [
        (aten.squeeze.default, (), [4, 6]),
        (aten.squeeze.dim, (-1,), [1, 4, 6]),
        (aten.squeeze.dims, ([0, 1],), [4, 6, 1]),
    ],
)
def test_squeezes_are_stated(op: Any, rest: tuple[Any, ...], new: list[int]) -> None:
    b = Builder()
    x = b.enter("x", "f32[1, 4, 6, 1]")
    b.leave(OutputKind.OUTPUT, "y", b.call("view/0", op, (x, *rest), f"f32{new}"))
    (node,) = canonicalize(b.program()).calls()
    assert op_name(node) == "aten.reshape.default"
    assert node.args[1:] == (new,)


@pytest.mark.parametrize(("op", "rest", "type", "new_op", "new_rest"), REWRITES)
def test_views_are_stated(
    op: Any, rest: tuple[Any, ...], type: str, new_op: str, new_rest: tuple[Any, ...]
) -> None:
    b = Builder()
    x = b.enter("x", "f32[4, 6]")
    b.leave(OutputKind.OUTPUT, "y", b.call("view/0", op, (x, *rest), type))
    before = b.program()
    after = canonicalize(before)
    (node,) = after.calls()
    assert op_name(node) == f"aten.{new_op}"
    assert node.args[1:] == new_rest
    assert info(node).key == "view/0"
    (same,) = before.calls()
    assert same.target is op
    value = torch.arange(24.0).reshape(4, 6)
    torch.testing.assert_close(run(after.graph, value), run(before.graph, value))


@pytest.mark.parametrize(
    ("op", "rest", "types", "sizes"),
    [
        (aten.split.Tensor, (4, -1), "f32[4, 4]; f32[4, 2]", ([4, 2], 1)),
        (aten.split.Tensor, (2,), "f32[2, 6]; f32[2, 6]", ([2, 2], 0)),
        (
            aten.split_with_sizes.default,
            ([1, 5], -1),
            "f32[4, 1]; f32[4, 5]",
            ([1, 5], 1),
        ),
    ],
)
def test_splits_state_their_sizes(
    op: Any, rest: tuple[Any, ...], types: str, sizes: tuple[Any, ...]
) -> None:
    b = Builder()
    x = b.enter("x", "f32[4, 6]")
    cut = b.call("split/0", op, (x, *rest), types)
    b.leave(OutputKind.OUTPUT, "y", b.graph.call_function(operator.getitem, (cut, 1)))
    (node,) = canonicalize(b.program()).calls()
    assert op_name(node) == "aten.split_with_sizes.default"
    assert node.args[1:] == sizes


def test_what_only_autograd_needs_is_gone() -> None:
    b = Builder()
    x = b.enter("x", "f32[4]")
    value = x
    for index, op in enumerate(
        (
            aten.alias.default,
            aten.detach.default,
            aten.lift_fresh_copy.default,
            aten.lift_fresh.default,
        )
    ):
        value = b.call(f"op/{index}", op, (value,), "f32[4]")
    b.call("unused/0", aten.neg.default, (x,), "f32[4]")
    b.call("check/0", aten._assert_tensor_metadata.default, (x,), "None")
    b.leave(
        OutputKind.OUTPUT, "y", b.call("relu/0", aten.relu.default, (value,), "f32[4]")
    )
    assert show(canonicalize(b.program())) == (
        "relu/0: f32[4] = aten.relu.default(input:x)\noutput:y = relu/0"
    )


def ops_left(exponent: Any, type: str, user: Any, *others: Any) -> list[str]:
    """Return the ops of a power and one behind it."""
    b = Builder()
    x = b.enter("x", "f32[4]")
    made = b.call("pow/0", aten.pow.Tensor_Scalar, (x, exponent), type)
    b.leave(OutputKind.OUTPUT, "y", b.call("user/0", user, (made, *others), type))
    return [op_name(node) for node in canonicalize(b.program()).calls()]


@pytest.mark.parametrize("one", [1, 1.0])
def test_a_power_of_one_that_is_multiplied_is_gone(one: float) -> None:
    product = ["aten.mul.Scalar"]
    power = "aten.pow.Tensor_Scalar"
    assert ops_left(one, "f32[4]", aten.mul.Scalar, 2.0) == product
    assert ops_left(2.0, "f32[4]", aten.mul.Scalar, 2.0) == [power, *product]
    assert ops_left(one, "f64[4]", aten.mul.Scalar, 2.0) == [power, *product]
    assert ops_left(one, "f32[4]", aten.detach.default) == [power], "it leaves, a copy"


def test_the_backward_of_a_square_has_no_power() -> None:
    class Squared(small.Scale):
        def forward(self, x: Tensor) -> Tensor:
            return (self.w * x).pow(2).sum()

    ops = ops_of(Squared(), torch.randn(4))
    assert "aten.pow.Tensor_Scalar" in ops, "that of the forward"
    program = capture(Squared(), (torch.randn(4),), {}).program
    powers = program.graph.find_nodes(op="call_function", target=aten.pow.Tensor_Scalar)
    assert [node.args[1] for node in powers] == [2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.int32])
def test_a_power_of_one_changes_no_bit(dtype: torch.dtype) -> None:
    bits = torch.randint(-(1 << 31), 1 << 31, (1 << 16,), dtype=torch.int64)
    values = bits.to(torch.int32).view(dtype)
    power = values.pow(1.0 if dtype.is_floating_point else 1)
    assert power.view(torch.int32).equal(values.view(torch.int32))


def joined(*types: str) -> str:
    b = Builder()
    parts = [b.enter(f"x{i}", type) for i, type in enumerate(types)]
    b.leave(
        OutputKind.OUTPUT,
        "y",
        b.call("cat/0", aten.cat.default, (parts, -1), "f32[2, 3]"),
    )
    return show(canonicalize(b.program()))


def test_cat_loses_its_empty_operands() -> None:
    assert joined("f32[0]", "f32[2, 1]", "f32[2, 2]") == (
        "cat/0: f32[2, 3] = aten.cat.default(input:x1, input:x2)\noutput:y = cat/0"
    )
    assert joined("f32[2, 3]", "f32[0]") == "output:y = input:x0"
    assert joined("f32[2, 0]", "f32[2, 3]", "f32[2, 0]") == "output:y = input:x1"


def test_cat_that_changes_a_dtype_stays() -> None:
    assert joined("f32[0]", "i64[2, 3]") == (
        "cat/0: f32[2, 3] = aten.cat.default(input:x1)\noutput:y = cat/0"
    )


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (aten.empty.memory_format, ([2, 3],)),
        (aten.empty_like.default, ("x",)),
        (aten.new_empty.default, ("x", [2, 3])),
        (aten.new_zeros.default, ("x", [2, 3])),
        (aten.full_like.default, ("x", 2.0)),
        (aten.new_full.default, ("x", [2, 3], 2.0)),
    ],
)
def test_a_constant_is_made_after_nothing(op: Any, args: tuple[Any, ...]) -> None:
    b = Builder()
    x = b.enter("x", "f32[2, 3]")
    made = b.call("made/0", op, tuple(x if a == "x" else a for a in args), "f32[2, 3]")
    b.leave(OutputKind.OUTPUT, "y", made)
    assert "made/0: f32[2, 3] = aten.full.default()" in show(canonicalize(b.program()))


def test_unused_constants_are_dropped_from_the_inputs() -> None:
    b = Builder()
    used = b.enter("used", "f32[4]", kind=InputKind.CONSTANT)
    b.enter("unused", "f32[4]", kind=InputKind.CONSTANT)
    b.enter("x", "f32[4]")
    b.leave(
        OutputKind.OUTPUT, "y", b.call("relu/0", aten.relu.default, (used,), "f32[4]")
    )
    program = b.program()
    program.constants.update(used=torch.ones(4), unused=torch.zeros(4))
    after = canonicalize(program)
    assert [role.name for role in after.inputs] == ["used", "x"]
    assert list(after.constants) == ["used"]
    assert len(program.constants) == 2


def test_unknown_draws_are_refused_by_line() -> None:
    b = Builder()
    x = b.enter("x", "f32[4]")
    drawn = b.call("poisson/0", aten.poisson.default, (x,), "f32[4]")
    b.leave(OutputKind.OUTPUT, "y", x)
    b.leave(OutputKind.OUTPUT, "z", drawn)
    with pytest.raises(CaptureFailed) as caught:
        canonicalize(b.program())
    assert str(caught.value) == (
        "model.py:7: aten.poisson.default in the model itself draws random numbers in "
        "a way that would depend on the layout; call model.eval(), or draw with "
        "dropout, bernoulli, rand, randn or randint"
    )


def ops_of(model: torch.nn.Module, x: Tensor) -> set[str]:
    return {op_name(node) for node in capture(model, (x,), {}).program.calls()}


def test_attention_is_one_op() -> None:
    ops = ops_of(small.Attending(), torch.randn(2, 3, 8))
    assert "partita.attention.default" in ops
    assert "partita.attention_backward.default" in ops
    assert not any("scaled_dot_product" in op or "softmax" in op for op in ops)


def test_attention_with_a_learned_bias_falls_apart() -> None:
    ops = ops_of(small.Attending(learned_bias=True), torch.randn(2, 3, 8))
    assert not any("attention" in op for op in ops)
    assert any("softmax" in op for op in ops)


class Rank3(small.Attending):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.nn.functional.scaled_dot_product_attention(self.q(x), x, x)
        return y.sum() + self.kv(x).sum()


def test_attention_without_heads_falls_apart() -> None:
    assert not any("attention" in op for op in ops_of(Rank3(), torch.randn(2, 3, 8)))


class Conjugated(small.Scale):
    def forward(self, x: Tensor) -> Tensor:
        turned = torch.polar(x.exp(), x * self.w).conj()
        return torch.view_as_real(turned.resolve_conj()).square()[..., 1].sum()


def test_a_conjugate_is_computed_and_no_mark_on_a_view() -> None:
    ops = ops_of(Conjugated(), torch.randn(2, 4))
    assert "aten.conj_physical.default" in ops
    assert not {"aten._conj.default", "aten.resolve_conj.default"} & ops


def test_the_conjugate_of_a_number_is_a_number() -> None:
    class Turned(small.Scale):
        def forward(self, x: Tensor) -> Tensor:
            return torch.exp(1j * self.w * x).real.sum()

    x = torch.linspace(-1, 1, 4)
    model = Turned()
    program = capture(model, (x,), {}).program
    conjugates = program.graph.find_nodes(
        op="call_function", target=aten.conj_physical.default
    )
    assert all(node.all_input_nodes for node in conjugates)
    feeds = {"w": model.w, "x": x, "loss_scale": torch.ones(())}
    values = [feeds.get(r.name, program.constants.get(r.name)) for r in program.inputs]
    with torch.no_grad():
        _, gradient = program.graph_module(*values)
    model(x).backward()
    torch.testing.assert_close(gradient, model.w.grad)


CALLABLES: list[Callable[..., Any]] = [aten.detach.default, aten.alias.default]


@pytest.mark.parametrize("op", CALLABLES)
def test_an_input_may_leave_as_it_came(op: Callable[..., Any]) -> None:
    b = Builder()
    x = b.enter("x", "f32[4]")
    b.leave(OutputKind.OUTPUT, "y", b.call("op/0", op, (x,), "f32[4]"))
    assert show(canonicalize(b.program())) == "output:y = input:x"


def test_counted_positions_are_constants_and_equal_ones_one() -> None:
    class Positions(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(6))

        def forward(self, x: Tensor) -> Tensor:
            first, second = torch.arange(6), torch.arange(6)
            other = torch.arange(0, 12, 2)
            return (x * self.w * first + second * other).sum()

    program = capture(Positions(), (torch.ones(6),), {}).program
    assert [op_name(n) for n in program.calls() if "arange" in op_name(n)] == []
    assert {name: c.tolist() for name, c in program.constants.items()} == {
        "arange(6):i64[6]": [0, 1, 2, 3, 4, 5],
        "arange.start_step(0,12,2):i64[6]": [0, 2, 4, 6, 8, 10],
    }
