"""The formula of an op is the price that the search gives it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.compiler.ir.small_programs import Builder
from tests.compiler.search.test_candidates import candidates

from partita.compiler.cost.op_formula import op_formula
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import OutputKind, Program

aten = torch.ops.aten
FEW = settings(max_examples=5, deadline=None)
SIZES = st.sampled_from([1, 2, 7, 64, 100, 1000])


def product(m: int, n: int, k: int, mesh: Mesh) -> Program:
    b = Builder(mesh)
    x, w = b.enter("x", f"bf16[{m}, {k}]"), b.enter("w", f"bf16[{k}, {n}]")
    mm = b.call("mm/0", aten.mm.default, (x, w), f"bf16[{m}, {n}]")
    b.leave(OutputKind.OUTPUT, "y", mm)
    return b.program()


def added(m: int, n: int, mesh: Mesh) -> Program:
    b = Builder(mesh)
    x, w = b.enter("x", f"f32[{m}, {n}]"), b.enter("w", f"f32[{n}]")
    add = b.call("add/0", aten.add.Tensor, (x, w), f"f32[{m}, {n}]")
    b.leave(OutputKind.OUTPUT, "y", add)
    return b.program()


def check(program: Program, mesh: Mesh, name: str) -> None:
    """Compare formula and price of each signature of the one call."""
    hardware = load_hardware(name)
    found = candidates(program, mesh, hardware=hardware)
    (node,) = program.calls()
    call, (_, factors) = found.calls[node], found.read[node]
    for priced in found.of_call(node):
        choice = priced.choice
        formula = op_formula(call, factors, choice.signature, mesh, hardware)
        assert formula.evaluate_at({}) == pytest.approx(choice.seconds, rel=1e-12)


@pytest.mark.parametrize("name", ["cpu-gloo", "h100-dgx"])
@FEW
@given(m=SIZES, n=SIZES, k=SIZES, axes=st.sampled_from([(2, 3), (4, 2)]))
def test_product(name: str, m: int, n: int, k: int, axes: tuple[int, int]) -> None:
    mesh = Mesh(dp=axes[0], k=axes[1])  # an axis of a factor's name
    check(product(m, n, k, mesh), mesh, name)


@FEW
@given(m=SIZES, n=SIZES)
def test_elementwise(m: int, n: int) -> None:
    mesh = Mesh(dp=2, tp=4)
    check(added(m, n, mesh), mesh, "a100-40gb")


def test_formula_holds_for_other_sizes() -> None:
    mesh = Mesh(tp=2)
    hardware = load_hardware("h100-dgx")

    def priced(m: int, n: int) -> dict[str, float]:
        program = product(m, n, 512, mesh)
        found = candidates(program, mesh, hardware=hardware)
        (node,) = program.calls()
        return {str(p.choice.signature): p.choice.seconds for p in found.of_call(node)}

    program = product(1024, 2048, 512, mesh)
    found = candidates(program, mesh, hardware=hardware)
    (node,) = program.calls()
    call, (_, factors) = found.calls[node], found.read[node]
    larger = priced(8192, 4096)
    assert len(larger) > 3
    for choice in (p.choice for p in found.of_call(node)):
        formula = op_formula(call, factors, choice.signature, mesh, hardware)
        assert formula.evaluate_at({"m": 8192, "n": 4096}) == pytest.approx(
            larger[str(choice.signature)]
        )


def test_formula_prints_factors_axes_and_figures() -> None:
    mesh = Mesh(tp=2)
    program = product(64, 64, 64, mesh)
    hardware = load_hardware("cpu-gloo")
    found = candidates(program, mesh, hardware=hardware)
    (node,) = program.calls()
    call, (_, factors) = found.calls[node], found.read[node]
    (split,) = (
        p.choice.signature
        for p in found.of_call(node)
        if str(p.choice.signature) == "(S(0),), (B,) -> (S(0),)"
    )
    formula = op_formula(call, factors, split, mesh, hardware)
    assert str(formula) == (
        "launch_s + Max((2*k*n + 2*k*ceiling(m/tp) + 2*n*ceiling(m/tp))"
        "/memory_bytes_per_s, 2.0*k*n*ceiling(m/tp)/flops_per_s)"
    )
