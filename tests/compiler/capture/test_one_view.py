"""Views of views are one view, or none where they undo each other."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from tests.compiler.ir.small_programs import Builder
from torch import Tensor, fx, nn

from partita.compiler.capture.capture import capture
from partita.compiler.capture.one_view import join_views
from partita.compiler.ir.program import OutputKind, Program, info, op_name

aten = torch.ops.aten

View = tuple[str, tuple[int, ...]]
"""``reshape`` to a shape, or ``permute`` in an order."""


def of_views(*views: View, shared: int | None = None) -> Program:
    """Return a program of views of views; one of them may leave by itself as well."""
    b = Builder()
    made = [b.enter("x", "f32[2, 3, 4]")]
    shape: tuple[int, ...] = (2, 3, 4)
    for number, (name, to) in enumerate(views):
        is_reshape = name == "reshape"
        shape = to if is_reshape else tuple(shape[dim] for dim in to)
        op: Any = aten.reshape.default if is_reshape else aten.permute.default
        made.append(b.call(str(number), op, (made[-1], [*to]), f"f32{[*shape]}"))
    b.leave(OutputKind.OUTPUT, "y", made[-1])
    if shared is not None:
        b.leave(OutputKind.OUTPUT, "z", made[shared + 1])
    return b.program()


@pytest.mark.parametrize(
    ("views", "left"),
    [
        ((("permute", (1, 2, 0)), ("permute", (2, 0, 1))), ()),
        (
            (("permute", (1, 2, 0)), ("permute", (1, 2, 0))),
            (("permute", (2, 0, 1)),),
        ),
        (
            (("permute", (1, 0, 2)), ("permute", (2, 1, 0)), ("permute", (0, 2, 1))),
            (("permute", (2, 1, 0)),),
        ),
        ((("reshape", (6, 4)), ("reshape", (2, 3, 4))), ()),
        ((("reshape", (6, 4)), ("reshape", (24,))), (("reshape", (24,)),)),
        (
            (("reshape", (24,)), ("reshape", (4, 6)), ("reshape", (24,))),
            (("reshape", (24,)),),
        ),
        (
            (("permute", (1, 0, 2)), ("reshape", (3, 8)), ("permute", (1, 0))),
            (("permute", (1, 0, 2)), ("reshape", (3, 8)), ("permute", (1, 0))),
        ),
        (
            (
                ("reshape", (6, 4)),
                ("permute", (1, 0)),
                ("permute", (1, 0)),
                ("reshape", (2, 12)),
            ),
            (("reshape", (2, 12)),),
        ),
    ],
)
def test_chains_are_one_view(views: tuple[View, ...], left: tuple[View, ...]) -> None:
    program = of_views(*views)
    x = torch.arange(24.0).reshape(2, 3, 4)
    before = run(program.graph, x)
    join_views(program)
    program.graph.lint()
    assert [_view(node) for node in program.calls()] == [*left]
    torch.testing.assert_close(run(program.graph, x), before, rtol=0.0, atol=0.0)


@pytest.mark.parametrize(
    ("views", "shared", "left"),
    [
        # What undoes a view that others use is none; the view stays.
        ((("permute", (1, 2, 0)), ("permute", (2, 0, 1))), 0, ["0"]),
        # Both are of the tensor itself.
        ((("permute", (1, 2, 0)), ("permute", (1, 2, 0))), 0, ["0", "1"]),
        # One of the tensor itself would be no fewer.
        ((("reshape", (24,)), ("reshape", (4, 6))), 0, ["0", "1"]),
        # ... which the last of three is, where the second is its own.
        ((("reshape", (24,)), ("reshape", (4, 6)), ("reshape", (6, 4))), 0, ["0", "2"]),
    ],
)
def test_a_view_that_is_used_as_well_stays(
    views: tuple[View, ...], shared: int, left: list[str]
) -> None:
    program = of_views(*views, shared=shared)
    x = torch.arange(24.0).reshape(2, 3, 4)
    before = run(program.graph, x)
    join_views(program)
    program.graph.lint()
    assert [info(node).key for node in program.calls()] == left
    torch.testing.assert_close(run(program.graph, x), before, rtol=0.0, atol=0.0)


def test_a_weight_is_transposed_once_in_a_step_and_its_gradient_never() -> None:
    layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
    program = capture(layers, (torch.ones(2, 4),), {}, loss=Tensor.sum).program
    found = Counter(op_name(node) for node in program.calls())
    weights = 2
    gradients = 2  # each product's left operand, what comes from above, is transposed
    assert found["aten.permute.default"] == weights + gradients
    leaving = {role.name: node for node, role in program.results()}
    for name in ("0.weight", "2.weight"):
        assert leaving[name].target is aten.mm.default


def _view(node: fx.Node) -> View:
    args: Any = node.args
    return op_name(node).split(".")[1], tuple(args[1])


def run(graph: fx.Graph, x: torch.Tensor) -> Any:
    return fx.GraphModule(nn.Module(), graph)(x)
