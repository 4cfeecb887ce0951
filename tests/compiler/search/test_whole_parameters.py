"""Fewer choices: every trained parameter is whole on all ranks."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from tests.models.captured import captured

import partita as pt
from partita.compiler.search.problem import cost_of, made_placement
from partita.compiler.search.solver import solve
from partita.compiler.search.whole_parameters import WholeParameters
from partita.one_mesh.planner import Planner


@cache
def planner(name: str, mesh: str) -> Planner:
    _, known = captured(name)
    return Planner(known, name, pt.Mesh.parse(mesh), pt.Options())


@pytest.mark.parametrize(("name", "mesh"), [("mlp", "dp=2"), ("gpt2", "dp=2,tp=2")])
def test_its_cheapest_is_one_of_all_with_parameters_whole(name: str, mesh: str) -> None:
    posed = planner(name, mesh).posed
    whole = WholeParameters.of(posed.fold)
    assert whole is not None
    found = solve(whole.fold.problem, 60.0, fold=whole.fold)
    choices = whole.among_all(found.choices)
    assert cost_of(posed.problem, choices) == pytest.approx(found.seconds)
    trained = 0
    for node, number in zip(posed.problem.nodes, choices, strict=True):
        choice = node.choices[number]
        if choice.held is not None:
            trained += 1
            held = choice.held.gradient, choice.held.optimizer
            assert not any(
                placement.has_partial or "S" in str(placement)
                for placement in (made_placement(choice, 0), *held)
            )
    assert trained == len(posed.candidates.program.trained)


def test_a_parameter_that_is_pinned_to_be_split_leaves_no_such_problem() -> None:
    made = planner("mlp", "dp=2")
    name = sorted(made.captured.program.trained)[-1]
    options = replace(made.options, pins={name: "S(0)"})
    assert WholeParameters.of(replace(made, options=options).posed.fold) is None
