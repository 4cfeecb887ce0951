"""What nodes may make and want, as numbers."""

from __future__ import annotations

from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.signature import Signature
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.offers import Offers
from partita.compiler.search.problem import Choice, SearchNode

S, B, P = map(Placement.parse, ("S(0)", "B", "P"))
TYPE = TensorType.parse("f32[4]")


def offers() -> Offers:
    signatures = [((S, S), S), ((B, S), S), ((B, B), P)]
    choices = tuple(Choice(Signature(o, (r,)), 0.0) for o, r in signatures)
    return Offers([SearchNode("a", choices, ((1, 0), (1, 0)), (TYPE,))])


def test_choices_that_make_the_same_share_a_class() -> None:
    found = offers()
    rows, classes = found.made(0, 0)
    assert [found.placements[row] for row in rows] == [S, P]
    assert classes.tolist() == [0, 0, 1]


def test_a_port_wants_all_operands_that_are_one_tensor() -> None:
    found = offers()
    columns, port = found.wanted(0, (0, 1))
    wants = [
        {found.placements[columns[i]] for i, is_wanted in enumerate(own) if is_wanted}
        for own in port.sets[port.classes]
    ]
    assert wants == [{S}, {B, S}, {B}]


def test_a_port_is_its_callers_to_change() -> None:
    found = offers()
    _, first = found.wanted(0, (0,))
    first.classes = first.classes[:1]
    first.sets = first.sets[:, :1]
    _, second = found.wanted(0, (0,))
    assert second.classes.tolist() == [0, 1, 1]
    assert second.sets.shape == (2, 2)
