"""The searched plan of a random model is as cheap as the best of all assignments."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.compiler.search.hand_made import RandomModel, brute_force, machine, planner

from partita.compiler.ir.mesh import Mesh
from partita.compiler.search.problem import Problem, cost_of
from partita.compiler.search.solver import Solution, solve

SEEDS = st.integers(0, 1 << 20)


def problem_of(seed: int, num_ops: int, mesh: Mesh, train: bool) -> Problem:
    """Return a problem on a machine whose links are slow, even or fast, by seed."""
    model = RandomModel(seed, num_ops)
    hardware = machine(
        launch_s=1e-10,
        alpha_s=1e-9,
        flops_per_s=1e8,
        bytes_per_s=[1e8, 1e9, 1e10][seed % 3],
    )
    made = planner(model, model.inputs(), mesh=mesh, train=train, hardware=hardware)
    return made.posed.problem


def check_optimum(problem: Problem) -> Solution:
    solution = solve(problem, 30.0)
    assert solution.status == "optimal"
    # All that cost less than this are tried, and those as good as the solution do.
    found = brute_force(problem, solution.seconds * (1 + 1e-6) + 1e-18)
    assert found.choices
    assert found.best == pytest.approx(solution.seconds, rel=1e-7)
    assert cost_of(problem, found.choices) == pytest.approx(found.best, rel=1e-12)
    return solution


@settings(max_examples=25)
@given(SEEDS, st.sampled_from([2, 3, 4]))
def test_inference_on_one_axis(seed: int, size: int) -> None:
    check_optimum(problem_of(seed, 6, Mesh(a=size), train=False))


@settings(max_examples=10)
@given(SEEDS, st.sampled_from([(2, 2), (2, 3)]))
def test_inference_on_two_axes(seed: int, sizes: tuple[int, int]) -> None:
    mesh = Mesh(a=sizes[0], b=sizes[1])
    check_optimum(problem_of(seed, 2, mesh, train=False))


@settings(max_examples=10)
@given(SEEDS)
def test_training_on_one_axis(seed: int) -> None:
    check_optimum(problem_of(seed, 2, Mesh(a=2), train=True))


def test_brute_force_without_a_limit_finds_the_same() -> None:
    problem = problem_of(7, 2, Mesh(a=2), train=False)
    assert brute_force(problem).best == pytest.approx(solve(problem, 30.0).seconds)


def test_random_problems_are_no_trivial_ones() -> None:
    splitting = 0
    for seed in range(12):
        problem = problem_of(seed, 6, Mesh(a=2), train=False)
        solution = check_optimum(problem)
        chosen = zip(problem.nodes, solution.choices, strict=True)
        signatures = [node.choices[index].signature for node, index in chosen]
        placements = [p for s in signatures for p in (*s.operands, *s.results) if p]
        splitting += not all(placement.is_broadcast for placement in placements)
    assert splitting >= 6
