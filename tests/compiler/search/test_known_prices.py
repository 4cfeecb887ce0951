"""Programs that have ops in common price them once, and alike."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.compiler.search.test_candidates import GRID, MACHINE, product
from tests.models.searched import searched
from tests.models.zoo import ZOO

import partita as pt
from partita.compiler.ir.mesh import Mesh
from partita.compiler.rules.table import default_rules
from partita.compiler.search.candidates import Candidates
from partita.compiler.search.pose import pose
from partita.compiler.search.problem import Problem
from partita.one_mesh.planner import Planner

GIVEN = default_rules, GRID, MACHINE


def test_a_second_program_prices_nothing_anew() -> None:
    one, mm = product()
    other, again = product()
    first = Candidates(one, *GIVEN)
    found = first.of_call(mm)
    second = Candidates(other, *GIVEN, known=first.known)
    assert second.of_call(again) is found
    assert found == Candidates(other, *GIVEN).of_call(again)


def test_boxings_of_one_type_are_priced_once() -> None:
    one, _ = product()
    other, _ = product()
    first = pose(Candidates(one, *GIVEN), {})
    _prices(first.problem)
    known = first.candidates.known
    tables = dict(known.boxings)
    second = pose(Candidates(other, *GIVEN, known=known), {})
    assert _prices(second.problem) == _prices(first.problem)
    assert known.boxings == tables
    fresh = pose(Candidates(other, *GIVEN), {})
    assert _prices(fresh.problem) == _prices(first.problem)


def _prices(problem: Problem) -> list[float]:
    found: list[float] = []
    for node in problem.nodes:
        for position, (source, result) in enumerate(node.operands):
            maker = problem.nodes[source]
            type_ = maker.result_types[result]
            assert type_ is not None
            pairs = {
                (one.signature.results[result], other.signature.operands[position])
                for one in maker.choices
                for other in node.choices
            }
            found += [
                problem.box_seconds(type_, made, wanted)
                for made, wanted in sorted(pairs, key=str)
                if made is not None and made != wanted
            ]
    return found


@pytest.mark.parametrize("mesh", [Mesh(tp=2), Mesh(dp=2, tp=4)])
def test_prices_of_another_mesh_are_not_taken(mesh: Mesh) -> None:
    program, mm = product()
    known = Candidates(program, *GIVEN).known
    moved, there = product(mesh)
    other = Candidates(moved, default_rules, mesh, MACHINE, known=known)
    assert other.known is not known
    assert other.of_call(there) == Candidates(
        moved, default_rules, mesh, MACHINE
    ).of_call(there)
    assert mm is not there


def test_planners_that_are_replaced_share_what_is_known() -> None:
    model, args, kwargs = ZOO["mlp"]()
    planner = Planner.of(model, args, kwargs, Mesh(tp=2), pt.Options())
    plan = searched(planner)
    other = replace(planner, options=replace(planner.options, memory="1GiB"))
    assert other.posed.candidates.known is planner.posed.candidates.known
    assert searched(other).nodes == plan.nodes
