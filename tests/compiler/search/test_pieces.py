"""In which pieces an optimizer may have what is stored whole, and what that takes."""

from __future__ import annotations

from itertools import product

import pytest
from tests.compiler.search.hand_made import machine

from partita.compiler.cost.boxing import cheapest_steps
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.held import Held, update_seconds
from partita.compiler.search.pieces import Pieces, refines

at = Placement.parse
GRID = Mesh(dp=2, tp=2)
MATRIX = TensorType.parse("f32[64, 32]")


def offered(mesh: Mesh, dims: int = 2) -> list[Placement]:
    """Return all placements of matrices that can be stored."""
    options = ["B", *(f"S({dim})" for dim in range(dims))]
    return [at(", ".join(own)) for own in product(options, repeat=mesh.ndim)]


def pieces(
    type_: TensorType, mesh: Mesh, optimizer: str = "adamw"
) -> dict[str, list[str]]:
    every = offered(mesh, type_.ndim)
    found = Pieces(mesh, machine(), optimizer).of(type_, every, every)
    for own in found.values():
        assert all(held.gradient == held.optimizer for held in own)
    return {
        str(storage): [str(held.optimizer) for held in own]
        for storage, own in found.items()
    }


def test_what_is_stored_whole_is_updated_so_or_in_pieces() -> None:
    assert pieces(MATRIX, Mesh(dp=2)) == {
        "(B,)": ["(B,)", "(S(0),)"],
        "(S(0),)": ["(S(0),)"],
        "(S(1),)": ["(S(1),)"],
    }


def test_there_is_one_way_to_cut_along_each_set_of_axes() -> None:
    found = pieces(MATRIX, GRID)
    assert found["(B, B)"] == ["(B, B)", "(B, S(0))", "(S(0), B)", "(S(0), S(0))"]
    assert found["(S(0), B)"] == ["(S(0), B)", "(S(0), S(0))"]
    assert found["(S(1), S(0))"] == ["(S(1), S(0))"]
    assert sum(map(len, found.values())) == 16


def test_the_dim_is_that_which_is_cheapest_to_scatter_and_to_gather() -> None:
    """Rows that ``tp`` splits already lie apart, so ``dp`` cuts the columns."""
    assert pieces(MATRIX, GRID)["(B, S(0))"] == ["(B, S(0))", "(S(1), S(0))"]
    wide = TensorType.parse("f32[1, 4096]")
    assert pieces(wide, Mesh(dp=2))["(B,)"][1:] == ["(S(1),)"]


def test_pieces_that_leave_a_rank_less_are_kept_too() -> None:
    """On four ranks one has two rows of five, 6 numbers, or one column of three, 5."""
    found = pieces(TensorType.parse("f32[5, 3]"), Mesh(dp=4))
    assert found["(B,)"] == ["(B,)", "(S(0),)", "(S(1),)"]
    found = pieces(TensorType.parse("f32[5, 64]"), Mesh(dp=4))
    assert found["(B,)"] == ["(B,)", "(S(1),)"]  # cheaper, and less


@pytest.mark.parametrize("text", ["f32[64, 32]", "f32[7, 10]", "f32[3, 8, 5]"])
def test_first_complete_as_stored_is_never_cheaper(text: str) -> None:
    """What leaves ZeRO-1 out: a boxing may pass through the storage by itself."""
    type_, hardware = TensorType.parse(text), machine()
    every = offered(GRID, type_.ndim)
    made = [at(", ".join(own)) for own in product(("P", "B", "S(0)", "S(1)"), repeat=2)]
    found = Pieces(GRID, hardware, "adamw").of(type_, every, every)

    def price(source: Placement, target: Placement) -> float:
        return cheapest_steps(type_, source, target, GRID, hardware).seconds

    for storage, own in found.items():
        for held, source in product(own, made):
            by_storage = price(source, storage) + price(storage, held.optimizer)
            assert price(source, held.optimizer) <= by_storage * (1 + 1e-12)


def test_it_takes_the_ways_and_the_update_of_a_piece() -> None:
    hardware, whole, split = machine(), at("B"), at("S(0)")
    mesh = Mesh(dp=2)
    found = Pieces(mesh, hardware, "adamw").seconds(MATRIX, whole, Held(split, split))
    gather = cheapest_steps(MATRIX, split, whole, mesh, hardware).seconds
    update = update_seconds(MATRIX, split, mesh, hardware, "adamw")
    assert gather > 0
    assert found == pytest.approx(gather + update)


def test_pieces_keep_the_splits_of_the_storage() -> None:
    assert refines(at("(S(1), S(0))"), at("(B, S(0))"))
    assert not refines(at("(S(1), S(1))"), at("(B, S(0))"))
    assert not refines(at("(B, B)"), at("(B, S(0))"))
