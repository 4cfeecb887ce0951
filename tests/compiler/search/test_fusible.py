"""What can be of one kernel: elementwise ops, softmaxes, a value at one place a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import partita as pt
from partita.compiler.capture.capture import capture
from partita.compiler.ir.program import Program, info
from partita.compiler.rules.table import default_rules
from partita.compiler.search.fusible import Fusible
from partita.testing.prover import Sample, call_of

CLASSES, ROWS = 12, 8


class Made(nn.Module):
    """What a function makes of the outputs of a layer."""

    def __init__(self, make: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.make = nn.Linear(6, CLASSES), make

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of what is made of ``x`` ``[8, 6]``."""
        return self.make(self.layer(x)).sum()


def loss(logits: Tensor) -> Tensor:
    return F.cross_entropy(logits, torch.arange(ROWS) % CLASSES)


def precise_loss(logits: Tensor) -> Tensor:
    return loss(logits.double())


def both_ways(scores: Tensor) -> Tensor:
    return (scores * 2).softmax(1).exp().tanh().softmax(0) * 3


def twice(scores: Tensor) -> Tensor:
    return (scores * 2).softmax(1).exp().log_softmax(1) * 3


def at_several(scores: Tensor) -> Tensor:
    places = torch.tensor([[0, 1]]).expand(ROWS, 2)
    return scores * torch.zeros(ROWS, CLASSES).scatter(1, places, 1.0)


def into_scores(scores: Tensor) -> Tensor:
    return scores.scatter(1, torch.zeros(ROWS, 1, dtype=torch.int64), 1.0) * 2


def slow_memory() -> pt.Hardware:
    """Return a machine on which nearly every group pays."""
    known = pt.load_hardware("cpu-gloo")
    return replace(known, device=replace(known.device, memory_bytes_per_s=1e6))


def program_of(make: Callable[[Tensor], Tensor]) -> Program:
    return capture(Made(make), (torch.ones(ROWS, 6),), {}).program


def groups_of(
    make: Callable[[Tensor], Tensor], mesh: str, **pins: str
) -> list[list[str]]:
    """Return the groups of a plan, as ops."""
    options = pt.Options(hardware=slow_memory(), fuse=True, pins={**pins})
    plan = pt.plan(Made(make), torch.ones(ROWS, 6), mesh=mesh, options=options)
    return [[plan.nodes[key].op.split(".")[1] for key in keys] for keys in plan.fusion]


def scatters(make: Callable[[Tensor], Tensor]) -> list[bool]:
    """Return, for each scatter of a program, whether it can be of a kernel."""
    program = program_of(make)
    fusible = Fusible.of(program, default_rules)
    return [
        info(node).key in fusible
        for node in program.calls()
        if node.target is torch.ops.aten.scatter.value
    ]


def test_the_backward_of_a_loss_by_class_numbers_is_one_kernel() -> None:
    backward = ["full", "scatter", "mul", "_log_softmax_backward_data"]
    found = groups_of(loss, "dp=2", x="S(0)")
    assert [ops for ops in found if {*backward} <= {*ops}]


def test_a_softmax_of_cut_rows_is_none() -> None:
    """Its parts are ops of their own: the rows' largest elements are exchanged."""
    pins = {"_log_softmax/*": "S(1)", "_log_softmax/0~grad/*": "S(1)"}
    found = groups_of(loss, "dp=2", **pins)
    assert found
    assert not [op for ops in found for op in ops if "softmax" in op]


@pytest.mark.parametrize(
    ("make", "fusible"),
    [
        (loss, [True]),
        (precise_loss, [False]),
        (at_several, [False]),
        (into_scores, [False, False]),
    ],
)
def test_a_value_is_written_into_a_constant_at_one_place_a_row(
    make: Callable[[Tensor], Tensor], fusible: list[bool]
) -> None:
    assert scatters(make) == fusible


@pytest.mark.parametrize("op", [r.op for r in default_rules.rows if r.by_row])
def test_rows_are_of_tensors_of_one_shape(op: str) -> None:
    rule = default_rules.get(op)
    assert rule is not None
    x = torch.rand(2, 3)
    args: tuple[object, ...] = x, 1, False
    if "backward" in op:
        args = x, x, 1, torch.float32
    elif "safe" in op:
        args = x, 1
    call = call_of(Sample(op, args, {}))
    assert {t.shape for t in (*call.operands, *call.results) if t} == {(2, 3)}
    left, _, right = rule.dims_of(call).partition("->")
    assert {dims.strip() for dims in (*left.split(","), right)} == {"d0 d1!"}


def test_a_constant_that_another_kernel_makes_is_not_written_into() -> None:
    program = program_of(loss)
    fusible = Fusible.of(program, default_rules)
    ((writer, constant),) = fusible.into.items()
    assert not fusible.misfits(fusible.working)
    assert fusible.misfits(fusible.working - {constant}) == {writer}
    left = fusible.without({writer})
    assert left.working == fusible.working - {writer}
    assert not left.into


def test_what_reads_other_rows_is_another_kernel() -> None:
    program = program_of(both_ways)
    fusible = Fusible.of(program, default_rules)
    rows = {info(n).key for n in program.calls() if info(n).key in fusible.rows}
    assert {fusible.rows[key] for key in rows} == {"d0 d1!", "d0! d1"}
    assert fusible.misfits(fusible.working) == rows
    left = fusible.without(rows)
    assert left.working == fusible.working - rows
    assert not left.rows
    assert not left.misfits(left.working)
    found = groups_of(both_ways, "dp=1")
    assert found
    assert not [op for ops in found for op in ops if "softmax" in op]
    same = groups_of(twice, "dp=1")
    assert ["mul", "_softmax", "exp", "_log_softmax", "mul"] in same


@pytest.mark.parametrize("make", [loss, twice])
def test_kernels_compute_what_their_ops_do(make: Callable[[Tensor], Tensor]) -> None:
    model, x = Made(make), torch.randn(ROWS, 6)
    options = pt.Options(hardware=slow_memory(), fuse=True)
    plan = pt.plan(model, x, mesh="dp=1", options=options)
    assert any("softmax" in key for keys in plan.fusion for key in keys)
    found: list[Tensor] = []
    for compilation in ("eager", "regions"):
        program = pt.compile(model, plan, device="cpu", compilation=compilation)
        found.append(program.step(x))
        found += [p.grad for p in program.parameters() if p.grad is not None]
    half = len(found) // 2
    assert half == 3
    torch.testing.assert_close(found[half:], found[:half])
