from __future__ import annotations

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.compiler.cost import boxing_strategies as strategies

from partita.compiler.cost.boxing import Steps, cheapest_steps
from partita.compiler.cost.step import find_step
from partita.compiler.cost.symbolic import boxing_bytes_expr, evaluate
from partita.compiler.hardware.profile import load_hardware, profile_names
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType

GLOO = load_hardware("cpu-gloo")


def boxing(type: TensorType, source: str, target: str, mesh: Mesh) -> Steps:
    return cheapest_steps(
        type, Placement.parse(source), Placement.parse(target), mesh, GLOO
    )


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("S(0)", "B", "(tp - 1)*d1*itemsize*ceiling(d0/tp)"),
        ("P(sum)", "B", "ceiling(2*d0*d1*itemsize*(tp - 1)/tp)"),
        ("P(sum)", "S(0)", "ceiling(d1*itemsize*(tp - 1)*ceiling(d0/tp))"),
        ("S(0)", "S(1)", "ceiling(d1*itemsize*(tp - 1)*ceiling(d0/tp)/tp)"),
        ("S(1; 8|4)", "B", "(tp - 1)*d0*itemsize*(ceiling(8/tp) + ceiling(4/tp))"),
        ("B", "S(0)", "0"),
    ],
)
def test_expression_is_the_formula(source: str, target: str, expected: str) -> None:
    mesh, type = Mesh(tp=2), TensorType.parse("f32[8, 12]")
    before, after = Placement.parse(source), Placement.parse(target)
    step = find_step(type.shape, before, after, 0, mesh)
    assert step is not None
    names = {
        name: sympy.Symbol(name, integer=True, positive=True)
        for name in ("d0", "d1", "tp", "itemsize")
    }
    wanted = sympy.parse_expr(expected, local_dict=names)
    assert sympy.simplify(boxing_bytes_expr(type, (step,), mesh) - wanted) == 0


def test_expression_is_made_once_for_a_class_of_types() -> None:
    mesh, other_mesh = Mesh(tp=2), Mesh(tp=4)
    one, other = TensorType.parse("f32[8, 12]"), TensorType.parse("bf16[64, 128]")
    steps = boxing(one, "S(0)", "B", mesh).steps
    expr = boxing_bytes_expr(one, steps, mesh)
    assert expr == boxing_bytes_expr(other, steps, other_mesh)
    assert (
        evaluate(expr, other, other_mesh)
        == boxing(other, "S(0)", "B", other_mesh).bytes
    )


@settings(max_examples=300, deadline=None)
@given(data=st.data(), mesh=strategies.meshes(), type=strategies.types())
def test_bytes_are_the_expression_evaluated(
    data: st.DataObject, mesh: Mesh, type: TensorType
) -> None:
    source = data.draw(strategies.placements(type.shape, mesh.ndim))
    target = data.draw(strategies.placements(type.shape, mesh.ndim))
    hardware = load_hardware(data.draw(st.sampled_from(profile_names())))
    found = cheapest_steps(type, source, target, mesh, hardware)
    expr = boxing_bytes_expr(type, found.steps, mesh, hardware)
    assert evaluate(expr, type, mesh) == found.bytes
