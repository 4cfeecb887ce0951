"""Each of the plan's groups becomes one call, and what is computed stays."""

from __future__ import annotations

import operator

import pytest
import torch
from tests.compiler.ir.small_programs import Builder
from torch import fx

from partita.compiler.errors import BadPlan
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import InputKind, OutputKind, info
from partita.compiler.local_invariants import local as check_local
from partita.compiler.rules.table import default_rules
from partita.passes.fuse_small_ops import fuse_small_ops
from partita.passes.localize import localize
from partita.passes.promote_precision import promote_precision
from partita.runtime.virtual import run_all

aten = torch.ops.aten


def show(graph: fx.Graph) -> str:
    """Return the calls of a graph, a line each."""
    lines: list[str] = []
    for node in graph.nodes:
        if node.op in ("call_function", "call_module"):
            name = getattr(node.target, "__name__", str(node.target))
            args = ", ".join(str(arg) for arg in node.args)
            lines.append(f"{node.name} = {name}({args})")
        if node.op == "output":
            lines.append(f"return {', '.join(str(n) for n in node.args[0])}")
    return "\n".join(lines)


def gated(num_layers: int = 1) -> LocalProgram:
    """Return layers of ``x/2 * tanh(x)``, whose tanh is summed up as well."""
    b = Builder(Mesh(tp=1))
    x = b.enter("x", "f32[4, 8]", "B")
    for i in range(num_layers):
        half = b.call(f"{i}/half", aten.mul.Tensor, (x, 0.5), "f32[4, 8]", "B -> B")
        tanh = b.call(f"{i}/tanh", aten.tanh.default, (x,), "f32[4, 8]", "B -> B")
        total = b.call(f"{i}/sum", aten.sum.default, (tanh,), "f32[]", "B -> B")
        x = b.call(f"{i}/mul", aten.mul.Tensor, (half, tanh), "f32[4, 8]", "B, B -> B")
        b.leave(OutputKind.OUTPUT, f"sum{i}", total)
    b.leave(OutputKind.OUTPUT, "y", x)
    return localize(b.program(), (0,), default_rules, {})


def group(i: int) -> tuple[str, ...]:
    return (f"{i}/half", f"{i}/tanh", f"{i}/mul")


def test_before_and_after() -> None:
    local = gated()
    assert show(local.graph_module.graph) == (
        "mul_tensor = mul.Tensor(x, 0.5)\n"
        "tanh_default = tanh.default(x)\n"
        "sum_default = sum.default(tanh_default)\n"
        "mul_tensor_1 = mul.Tensor(mul_tensor, tanh_default)\n"
        "return sum_default, mul_tensor_1"
    )
    fused = fuse_small_ops(local, [group(0)])
    assert show(fused.graph_module.graph) == (
        "fused_0 = fused_0(x)\n"
        "getitem = getitem(fused_0, 0)\n"
        "getitem_1 = getitem(fused_0, 1)\n"
        "sum_default = sum.default(getitem)\n"
        "return sum_default, getitem_1"
    )
    region = fused.graph_module.get_submodule("fused_0")
    assert isinstance(region, fx.GraphModule)
    assert show(region.graph) == (
        "op_0 = mul.Tensor(input_0, 0.5)\n"
        "op_1 = tanh.default(input_0)\n"
        "op_2 = mul.Tensor(op_0, op_1)\n"
        "return op_1, op_2"
    )
    (call,) = fused.graph_module.graph.find_nodes(op="call_module", target="fused_0")
    assert info(call).key == "fusion[0]"
    assert [str(t) for t in info(call).types] == ["f32[4, 8]", "f32[4, 8]"]
    check_local(fused)


def test_what_is_computed_stays_the_same() -> None:
    local = gated(2)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    feeds = [{(InputKind.INPUT, "x"): x}]
    fused = fuse_small_ops(local, [group(0), group(1)])
    (wanted,), (found,) = run_all([local], feeds), run_all([fused], feeds)
    for a, b in zip(wanted, found, strict=True):
        assert a is not None
        assert b is not None
        assert torch.equal(a, b)


def test_equal_groups_are_one_module() -> None:
    fused = fuse_small_ops(gated(3), [group(i) for i in range(3)])
    calls = fused.graph_module.graph.find_nodes(op="call_module", target="fused_0")
    assert len(calls) == 3
    assert len(list(fused.graph_module.children())) == 1


def test_double_precision_reaches_into_regions() -> None:
    b = Builder(Mesh(tp=1))
    x = b.enter("x", "f32[4]", "B")
    low = b.call("to", aten._to_copy.default, (x,), "bf16[4]", "B -> B")
    low.kwargs = {"dtype": torch.bfloat16}
    y = b.call("neg", aten.neg.default, (low,), "bf16[4]", "B -> B")
    b.leave(OutputKind.OUTPUT, "y", y)
    local = localize(b.program(), (0,), default_rules, {})
    (promoted,) = promote_precision([fuse_small_ops(local, [("to", "neg")])])
    value = torch.tensor(1.0 + 2.0**-20, dtype=torch.float64)
    ((found,),) = run_all([promoted], [{(InputKind.INPUT, "x"): value}])
    assert found is not None
    assert found.item() == -value.item()


def split(*, is_inside: bool) -> LocalProgram:
    """Return a split of which both parts are used, one perhaps by the outside."""
    b = Builder(Mesh(tp=1))
    x = b.enter("x", "f32[4]", "B")
    y = b.call("neg", aten.neg.default, (x,), "f32[4]", "B -> B")
    parts = b.call(
        *("split", aten.split_with_sizes.default, (y, [1, 3])),
        *("f32[1]; f32[3]", "B -> B, B"),
    )
    small = b.graph.call_function(operator.getitem, (parts, 0))
    large = b.graph.call_function(operator.getitem, (parts, 1))
    z = b.call("mul", aten.mul.Tensor, (small, large), "f32[3]", "B, B -> B")
    b.leave(OutputKind.OUTPUT, "z", z)
    if not is_inside:
        b.leave(OutputKind.OUTPUT, "large", large)
    return localize(b.program(), (0,), default_rules, {})


@pytest.mark.parametrize("is_inside", [True, False])
def test_choices_among_results_go_along(is_inside: bool) -> None:
    fused = fuse_small_ops(split(is_inside=is_inside), [("neg", "split", "mul")])
    check_local(fused)
    ((z, *large),) = run_all([fused], [{(InputKind.INPUT, "x"): torch.arange(4.0) + 1}])
    assert z is not None
    assert z.tolist() == [2.0, 3.0, 4.0]
    assert [part.tolist() for part in large if part is not None] == (
        [] if is_inside else [[-2.0, -3.0, -4.0]]
    )


def test_a_group_that_waits_for_itself_is_refused() -> None:
    b = Builder(Mesh(tp=1))
    x = b.enter("x", "f32[4, 4]", "B")
    a = b.call("neg", aten.neg.default, (x,), "f32[4, 4]", "B -> B")
    m = b.call("mm", aten.mm.default, (a, x), "f32[4, 4]", "B, B -> B")
    y = b.call("add", aten.add.Tensor, (a, m), "f32[4, 4]", "B, B -> B")
    b.leave(OutputKind.OUTPUT, "y", y)
    local = localize(b.program(), (0,), default_rules, {})
    with pytest.raises(BadPlan) as raised:
        fuse_small_ops(local, [("neg", "add")])
    assert str(raised.value) == (
        "fusion[0]: neg, add cannot be one op: a path, perhaps through a boxing or "
        "another group, leaves and re-enters it"
    )


def test_groups_that_wait_for_each_other_are_refused() -> None:
    b = Builder(Mesh(tp=1))
    x = b.enter("x", "f32[4]", "B")
    for key in ("a", "b"):
        first = b.call(f"{key}0", aten.neg.default, (x,), "f32[4]", "B -> B")
        last = b.call(f"{key}1", aten.neg.default, (first,), "f32[4]", "B -> B")
        b.leave(OutputKind.OUTPUT, key, last)
    local = localize(b.program(), (0,), default_rules, {})
    with pytest.raises(BadPlan, match="cannot be one op"):
        fuse_small_ops(local, [("a0", "b1"), ("b0", "a1")])


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(BadPlan) as raised:
        fuse_small_ops(gated(), [group(0), ("0/sum", "nobody")])
    assert str(raised.value) == "fusion[1]: 'nobody' is no op of the program"


def test_a_key_in_two_groups_is_refused() -> None:
    with pytest.raises(BadPlan) as raised:
        fuse_small_ops(gated(), [group(0), ("0/sum", "0/tanh")])
    assert str(raised.value) == "fusion[1]: '0/tanh' is in fusion[0] already"


def test_without_groups_nothing_changes() -> None:
    local = gated()
    assert fuse_small_ops(local, ()) is local
