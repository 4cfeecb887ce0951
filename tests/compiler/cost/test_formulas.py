"""Formulas give what the search prices by, for any size."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.compiler.cost.collectives import CollectiveKind, axis_seconds, wire_bytes
from partita.compiler.cost.formulas import collective_formula, size_symbol
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.ir.mesh import Mesh

PAYLOAD = size_symbol("payload")


@pytest.mark.parametrize(
    "name", ["cpu-gloo", "cpu-gloo-free", "a100-40gb", "h100-efa", "b200"]
)
@pytest.mark.parametrize("kind", CollectiveKind)
@settings(max_examples=25)
@given(
    payload=st.integers(1, 1 << 34),
    sizes=st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([2, 3, 4, 8, 16])),
    stride=st.sampled_from([1, 2, 8]),
)
def test_collective_formula_is_the_price(
    name: str, kind: CollectiveKind, payload: int, sizes: tuple[int, int], stride: int
) -> None:
    hardware = load_hardware(name)
    mesh = Mesh(pp=sizes[0], dp=sizes[1], tp=stride)
    formula = collective_formula(kind, PAYLOAD, mesh, 1, hardware)
    wire = wire_bytes(kind, payload, sizes[1])
    expected = axis_seconds(kind, wire, mesh, 1, hardware)
    found = formula.evaluate_at({"payload": wire})
    assert found == pytest.approx(expected, rel=1e-12)


def test_scaling_curve_needs_no_new_formula() -> None:
    hardware = load_hardware("cpu-gloo")
    mesh = Mesh(tp=2)
    kind = CollectiveKind.ALL_GATHER
    formula = collective_formula(kind, PAYLOAD, mesh, 0, hardware)
    for size in (2, 4, 64):
        found = formula.evaluate_at({"payload": 1000, "tp": size})
        expected = axis_seconds(kind, 1000, Mesh(tp=size), 0, hardware)
        assert found == pytest.approx(expected)
    slow = {"loopback_bytes_per_s": 1.0, "loopback_all_to_all_bytes_per_s": 1.0}
    found = formula.evaluate_at({"payload": 1000, **slow})
    assert found == pytest.approx(1000, rel=1e-3)


def test_unknown_symbol_is_named() -> None:
    hardware = load_hardware("cpu-gloo")
    kind = CollectiveKind.ALL_GATHER
    formula = collective_formula(kind, PAYLOAD, Mesh(tp=2), 0, hardware)
    with pytest.raises(KeyError, match="speed"):
        formula.evaluate_at({"speed": 1.0, "payload": 1})
    with pytest.raises(KeyError, match="payload"):
        formula.evaluate_at({})
