"""Signatures: the choices of the axes side by side."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.compiler.ir.placement_strategies import any_shardings

from partita.compiler.ir.sbp import Broadcast, Partial, Placement, Sharding, Split
from partita.compiler.ir.signature import AxisSignature, Signature, compose

DP = AxisSignature((Split(0), Broadcast()), (Split(0), None))
TP = AxisSignature((Split(1), Split(0)), (Partial(), None))


def test_axes_compose_per_tensor() -> None:
    assert compose((DP, TP)) == Signature(
        (Placement.parse("(S(0), S(1))"), Placement.parse("(B, S(0))")),
        (Placement.parse("(S(0), P)"), None),
    )


def test_signatures_print_operands_and_results() -> None:
    assert str(TP) == "S(1), S(0) -> P(sum), None"
    assert str(compose((TP,))) == "(S(1),), (S(0),) -> (P(sum),), None"


@given(st.lists(any_shardings(), min_size=2, max_size=2))
def test_one_axis_composes_to_itself(shardings: list[Sharding]) -> None:
    first, second = shardings
    signature = compose((AxisSignature((first,), (second,)),))
    assert signature.operands == (Placement((first,)),)
    assert signature.results == (Placement((second,)),)


@pytest.mark.parametrize(
    ("signature", "is_broadcast"),
    [
        (AxisSignature((Broadcast(),), (Broadcast(), None)), True),
        (AxisSignature((), (None,)), True),
        (DP, False),
        (AxisSignature((Broadcast(),), (Partial(),)), False),
    ],
)
def test_broadcast_signature_places_everything_whole(
    signature: AxisSignature, is_broadcast: bool
) -> None:
    assert signature.is_broadcast is is_broadcast
