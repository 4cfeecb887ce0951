"""Figures of many boxings at once equal those of each by itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.compiler.cost.boxing_strategies import meshes, placements, types

from partita.compiler.cost.boxing import Steps, cheapest_steps
from partita.compiler.cost.boxing_prices import (
    BoxingTables,
    Table,
    boxing_prices,
    buffer_copies,
    last_messages,
)
from partita.compiler.cost.collectives import axis_seconds
from partita.compiler.cost.step import (
    StepKind,
    buffer_copied,
    payload_bytes,
    step_wire_bytes,
)
from partita.compiler.errors import BadPlacement
from partita.compiler.hardware.profile import Hardware, load_hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType


@settings(max_examples=60)
@given(st.data(), st.sampled_from(["cpu-gloo", "h100-dgx"]))
def test_prices_are_those_of_the_cheapest_steps(data: st.DataObject, name: str) -> None:
    hardware = load_hardware(name)
    mesh, type_ = data.draw(meshes()), data.draw(types())
    some = st.lists(placements(type_.shape, mesh.ndim), min_size=1, max_size=4)
    made, wanted = tuple(data.draw(some)), tuple(data.draw(some))
    prices = boxing_prices(type_, made, wanted, mesh, hardware)
    for row, source in enumerate(made):
        for column, target in enumerate(wanted):
            one = cheapest_steps(type_, source, target, mesh, hardware)
            assert prices[row, column] == pytest.approx(one.seconds, rel=1e-12)


def test_an_illegal_placement_is_named() -> None:
    b, wrong = Placement.parse("B"), Placement.parse("S(3)")
    type_ = TensorType.parse("f32[4]")
    with pytest.raises(BadPlacement, match="names dim 3"):
        boxing_prices(type_, (b,), (wrong,), Mesh(tp=2), load_hardware("cpu-gloo"))


def _last_message(boxing: Steps, type: TensorType, mesh: Mesh, on: Hardware) -> float:
    for step in reversed(boxing.steps):
        if step.collective:
            wire = step_wire_bytes(type, step, mesh)
            return axis_seconds(step.collective, wire, mesh, step.axis, on)
    return 0.0


def _copied(boxing: Steps, type: TensorType, mesh: Mesh, on: Hardware) -> float:
    seconds = 0.0
    for step in boxing.steps:
        payload = payload_bytes(type, step, mesh)
        moved = buffer_copied(step.kind, payload, mesh.sizes[step.axis])
        seconds += 2 * moved / on.device.memory_bytes_per_s
        seconds += on.device.launch_s * (step.kind is StepKind.ALL_GATHER)
    return seconds


@settings(max_examples=60)
@given(st.data(), st.sampled_from(["cpu-gloo", "h100-dgx"]))
def test_other_figures_are_those_of_cheapest_steps(
    data: st.DataObject, name: str
) -> None:
    """On one axis of the only ones; on more, of one of those that take as long."""
    hardware = load_hardware(name)
    mesh, type_ = data.draw(meshes()), data.draw(types())
    some = st.lists(placements(type_.shape, mesh.ndim), min_size=1, max_size=4)
    made, wanted = tuple(data.draw(some)), tuple(data.draw(some))
    last = last_messages(type_, made, wanted, mesh, hardware)
    copies = buffer_copies(type_, made, wanted, mesh, hardware)
    for row, source in enumerate(made):
        for column, target in enumerate(wanted):
            boxing = cheapest_steps(type_, source, target, mesh, hardware)
            last_s = _last_message(boxing, type_, mesh, hardware)
            copied_s = _copied(boxing, type_, mesh, hardware)
            if mesh.ndim == 1:
                assert last[row, column] == pytest.approx(last_s, rel=1e-12)
                assert copies[row, column] == pytest.approx(copied_s, rel=1e-12)
            assert last[row, column] >= last_s * (1 - 1e-12)
            assert copies[row, column] <= copied_s * (1 + 1e-12)


def test_figures_of_one_boxing_are_those_of_many() -> None:
    mesh, hardware = Mesh(dp=2, tp=2), load_hardware("h100-dgx")
    type_ = TensorType.parse("f32[64, 64]")
    ends = (*map(Placement.parse, ("(B, B)", "(S(0), B)", "(S(0), S(1))", "(P, P)")),)
    asked: list[int] = []

    def counted(*question: object) -> Table:
        asked.append(1)
        return last_messages(*question)

    tables = BoxingTables(mesh, hardware, {}, counted)
    tables.expect(type_, ends, ends[:3])
    every = last_messages(type_, ends, ends[:3], mesh, hardware)
    assert every[0].max() == 0.0, "nothing is sent of what all have"
    assert every[1:, 0].min() > 0.0
    found = [[tables(type_, made, wanted) for wanted in ends[:3]] for made in ends]
    np.testing.assert_array_equal(found, every)
    np.testing.assert_array_equal(
        tables.table(type_, ends[2:], ends[:2]), every[2:, :2]
    )
    assert len(asked) == 1, "all at once"
    with pytest.raises(BadPlacement, match="names dim 7"):
        tables(type_, ends[0], Placement.parse("(P, S(7))"))


def test_copies_of_several_steps_add_up() -> None:
    mesh, hardware = Mesh(dp=2, tp=2), load_hardware("h100-dgx")
    type_ = TensorType.parse("f32[64, 64]")
    split, whole = Placement.parse("(S(0), S(1))"), Placement.parse("(B, B)")
    boxing = cheapest_steps(type_, split, whole, mesh, hardware)
    assert [step.kind for step in boxing.steps] == [StepKind.ALL_GATHER] * 2
    copies = buffer_copies(type_, (split,), (whole,), mesh, hardware)
    copied_s = _copied(boxing, type_, mesh, hardware)
    assert copies[0, 0] == pytest.approx(copied_s, rel=1e-12)
