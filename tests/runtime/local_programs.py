"""A small model and its training program, split by hand over a mesh dp, tp.

What the passes will make of a model is written out here, so that the runtime is
tested alone. Hidden units are split over ``tp`` (column, then row parallel), the
batch over ``dp``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import InputKind, InputRole, OutputKind, OutputRole
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType

aten = torch.ops.aten
c10d = torch.ops._c10d_functional
BATCH, WIDTH, OUT = 8, 6, 4


class Mlp(nn.Module):
    """Loss of a two-layer perceptron; a frozen scale, buffers, a tied weight."""

    steps: torch.Tensor
    offset: torch.Tensor

    def __init__(self, hidden: int = 10) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, hidden, dtype=torch.float64)
        self.tied = nn.Linear(WIDTH, hidden, bias=False, dtype=torch.float64)
        self.tied.weight = self.up.weight
        self.down = nn.Linear(hidden, OUT, bias=False, dtype=torch.float64)
        scale = torch.arange(1.0, OUT + 1, dtype=torch.float64)
        self.scale = nn.Parameter(scale, requires_grad=False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        offset = torch.linspace(-1, 1, hidden, dtype=torch.float64)
        self.register_buffer("offset", offset, persistent=False)

    def forward(
        self, x: torch.Tensor, target: torch.Tensor, power: int = 2
    ) -> torch.Tensor:
        """Return the mean squared error."""
        self.steps += 1
        y = self.down(torch.relu(self.up(x) + self.offset)) * self.scale
        return ((y - target) ** power).mean()


def batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x and target."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(BATCH, WIDTH, dtype=torch.float64, generator=generator)
    return x, torch.randn(BATCH, OUT, dtype=torch.float64, generator=generator)


def collective(graph: fx.Graph, op: Any, *args: Any) -> fx.Node:
    """Insert a functional collective and the wait for it."""
    return graph.call_function(
        c10d.wait_tensor.default, (graph.call_function(op, args),)
    )


def local_mlp(
    mesh: Mesh, coordinates: tuple[int, ...], hidden: int = 10, segments: str = ""
) -> LocalProgram:
    """Return one rank's program of ``Mlp``; ``segments`` such as "; 4|6"."""
    graph = fx.Graph()
    f64, i64 = torch.float64, torch.int64
    rows, columns = f"(B, S(0{segments}))", f"(B, S(1{segments}))"
    inputs: list[tuple[InputRole, TensorType, Placement]] = []

    def enter(
        kind: InputKind,
        name: str,
        shape: tuple[int, ...],
        placement: str,
        dtype: torch.dtype = f64,
        aliases: tuple[str, ...] = (),
    ) -> fx.Node:
        entry = InputRole(kind, name, aliases), TensorType(shape, dtype)
        inputs.append((*entry, Placement.parse(placement)))
        return graph.placeholder(f"{kind}_{name}".replace(".", "_").replace("-", "_"))

    def call(op: Any, *args: Any) -> fx.Node:
        return graph.call_function(op, args)

    weight = ("tied.weight",)
    shape = (hidden, WIDTH)
    up = enter(InputKind.PARAMETER, "up.weight", shape, rows, aliases=weight)
    bias = enter(InputKind.PARAMETER, "up.bias", (hidden,), rows)
    down = enter(InputKind.PARAMETER, "down.weight", (OUT, hidden), columns)
    scale = enter(InputKind.PARAMETER, "scale", (OUT,), "(B, B)")
    steps = enter(InputKind.BUFFER, "steps", (), "(B, B)", i64)
    offset = enter(InputKind.BUFFER, "offset", (hidden,), rows)
    x = enter(InputKind.INPUT, "x", (BATCH, WIDTH), "(S(0), B)")
    target = enter(InputKind.INPUT, "target", (BATCH, OUT), "(S(0), B)")
    one = enter(InputKind.CONSTANT, "one", (), "(B, B)", i64)
    loss_scale = enter(InputKind.LOSS_SCALE, "loss_scale", (), "(B, B)")

    act = call(
        aten.add.Tensor, call(aten.mm.default, x, call(aten.t.default, up)), bias
    )
    act = call(aten.add.Tensor, act, offset)
    out = call(aten.relu.default, act)
    part = call(aten.mm.default, out, call(aten.t.default, down))
    full = collective(graph, c10d.all_reduce.default, part, "sum", "stage0/tp")
    y = call(aten.mul.Tensor, full, scale)
    error = call(aten.sub.Tensor, y, target)
    squares = call(aten.sum.default, call(aten.mul.Tensor, error, error))
    loss = call(aten.div.Tensor, squares, BATCH * OUT)
    loss = collective(graph, c10d.all_reduce.default, loss, "sum", "stage0/dp")

    grad = call(aten.mul.Tensor, call(aten.mul.Tensor, error, 2 / (BATCH * OUT)), scale)
    grad = call(aten.mul.Tensor, grad, loss_scale)
    grad_out = call(aten.mm.default, grad, down)
    grad_act = call(aten.mul.Tensor, grad_out, call(aten.gt.Scalar, act, 0))
    grads = [
        call(aten.mm.default, call(aten.t.default, grad_act), x),
        call(aten.sum.dim_IntList, grad_act, [0]),
        call(aten.mm.default, call(aten.t.default, grad), out),
    ]
    grads = [
        collective(graph, c10d.all_reduce.default, g, "sum", "stage0/dp") for g in grads
    ]
    steps_after = call(aten.add.Tensor, steps, one)
    graph.output((loss, *grads, steps_after, y))

    names = ["up.weight", "up.bias", "down.weight"]
    outputs = [
        (OutputRole(OutputKind.LOSS, "loss"), TensorType((), f64), "(B, B)"),
        *(
            (OutputRole(OutputKind.GRADIENT, role.name), type_, str(placement))
            for role, type_, placement in inputs
            if role.name in names
        ),
        (OutputRole(OutputKind.MUTATED_BUFFER, "steps"), TensorType((), i64), "(B, B)"),
        (
            OutputRole(OutputKind.OUTPUT, "y"),
            TensorType((BATCH, OUT), f64),
            "(S(0), B)",
        ),
    ]
    return LocalProgram(
        graph_module=fx.GraphModule(nn.Module(), graph),
        inputs=tuple(role for role, _, _ in inputs),
        outputs=tuple(role for role, _, _ in outputs),
        input_types=tuple(type_ for _, type_, _ in inputs),
        output_types=tuple(type_ for _, type_, _ in outputs),
        input_placements=tuple(placement for _, _, placement in inputs),
        output_placements=tuple(Placement.parse(text) for _, _, text in outputs),
        mesh=mesh,
        coordinates=coordinates,
        constants={"one": torch.ones((), dtype=i64)},
    )


def collective_program(
    mesh: Mesh, coordinates: tuple[int, ...], *calls: tuple[Any, ...]
) -> LocalProgram:
    """Return a program that gives the input "x" to each collective in turn.

    A call is ``(op, *arguments after the tensor)``; results leave the graph in order.
    """
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(tuple(collective(graph, op, x, *rest) for op, *rest in calls))
    placement = Placement.broadcast(mesh.ndim)
    type_ = TensorType((4,), torch.float32)
    return LocalProgram(
        graph_module=fx.GraphModule(nn.Module(), graph),
        inputs=(InputRole(InputKind.INPUT, "x"),),
        outputs=tuple(OutputRole(OutputKind.OUTPUT, str(i)) for i in range(len(calls))),
        input_types=(type_,),
        output_types=(type_,) * len(calls),
        input_placements=(placement,),
        output_placements=(placement,) * len(calls),
        mesh=mesh,
        coordinates=coordinates,
    )
