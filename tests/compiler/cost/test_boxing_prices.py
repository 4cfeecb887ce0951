"""Prices of many boxings at once equal those of each by itself."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.compiler.cost.boxing_strategies import meshes, placements, types

from partita.compiler.cost.boxing import cheapest_steps
from partita.compiler.cost.boxing_prices import boxing_prices
from partita.compiler.errors import BadPlacement
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType


@settings(max_examples=60)
@given(st.data(), st.sampled_from(["cpu-gloo", "h100-dgx"]))
def test_prices_are_those_of_the_cheapest_steps(data: st.DataObject, name: str) -> None:
    hardware = load_hardware(name)
    mesh, type_ = data.draw(meshes()), data.draw(types())
    some = st.lists(placements(type_.shape, mesh.ndim), min_size=1, max_size=4)
    made, wanted = data.draw(some), data.draw(some)
    prices = boxing_prices(type_, made, wanted, mesh, hardware)
    for row, source in enumerate(made):
        for column, target in enumerate(wanted):
            one = cheapest_steps(type_, source, target, mesh, hardware)
            assert prices[row, column] == pytest.approx(one.seconds, rel=1e-12)


def test_an_illegal_placement_is_named() -> None:
    b, wrong = Placement.parse("B"), Placement.parse("S(3)")
    type_ = TensorType.parse("f32[4]")
    with pytest.raises(BadPlacement, match="names dim 3"):
        boxing_prices(type_, [b], [wrong], Mesh(tp=2), load_hardware("cpu-gloo"))
