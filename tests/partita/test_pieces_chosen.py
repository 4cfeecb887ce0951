"""The search lets optimizers have parameters in pieces where that is the best."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import prod

import pytest
from tests.compiler.search.hand_made import machine
from tests.models.searched import searched
from tests.models.storage_pins import storage_pins
from tests.models.zoo import ZOO

from partita.compiler.capture.capture import Captured, capture
from partita.compiler.ir.mesh import Mesh
from partita.compiler.plan.plan import Plan
from partita.compiler.rules.table import default_rules
from partita.compiler.search.pose import Posed
from partita.compiler.search.problem import Choice
from partita.microbatched import in_microbatches
from partita.one_mesh.planner import Planner
from partita.options import Options
from partita.verifying.verification import Verifier

COUNT = 4
DATA = {"input_ids": "(S(0),)", "labels": "(S(0),)"}
HARDWARE = machine(
    flops_per_s=1e11, memory_bytes_per_s=1e10, launch_s=1e-7, bytes_per_s=2e9
)


@lru_cache(maxsize=3)
def captured(name: str, count: int) -> tuple[Captured, Verifier]:
    model, args, kwargs = ZOO[name]()
    found = capture(model, args, kwargs)
    cut = in_microbatches(found, count, default_rules)
    return cut, Verifier.of(model, args, kwargs, draws=found.program.draws)


def planner(
    name: str,
    ranks: int,
    pins: dict[str, str],
    memory: int | None = None,
    count: int = COUNT,
) -> Planner:
    options = Options(
        pins=pins,
        hardware=HARDWARE,
        memory=memory,
        microbatches=count,
        bucket=0,
        time_limit=30,
    )
    return Planner(captured(name, count)[0], name, Mesh(dp=ranks), options)


def is_as_stored(choice: Choice) -> bool:
    held = choice.held
    return held is None or held.optimizer == choice.signature.results[0]


def as_stored(made: Planner) -> Planner:
    """Return one that looks for plans alone whose optimizers have what is stored."""
    posed: Posed = made.posed
    kept = {
        id(node.choices): tuple(filter(is_as_stored, node.choices))
        for node in posed.problem.nodes
    }
    nodes = tuple(
        replace(node, choices=kept[id(node.choices)]) for node in posed.problem.nodes
    )
    other = replace(made)
    vars(other)["posed"] = replace(posed, problem=replace(posed.problem, nodes=nodes))
    return other


def part_apart(plan: Plan) -> float:
    """Return of what part of all numbers the optimizer has pieces of what is stored."""
    sizes = [
        (prod(own.shape), own.placements.storage != own.placements.optimizer)
        for own in plan.parameters.values()
    ]
    return sum(size for size, is_apart in sizes if is_apart) / sum(s for s, _ in sizes)


def check(name: str, plan: Plan) -> None:
    found, verifier = captured(name, COUNT)
    report = verifier.verify_captured(found, plan)
    assert report.ok, str(report)


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("gpt2", 2),
        pytest.param("gpt2", 4, marks=pytest.mark.slow),
        pytest.param("llama", 2, marks=pytest.mark.slow),
        pytest.param("llama", 4, marks=pytest.mark.slow),
    ],
)
def test_under_a_limit_pieces_are_faster_than_all_else(name: str, ranks: int) -> None:
    """What is stored in pieces is gathered in each microbatch, the update's once."""
    whole = searched(planner(name, ranks, DATA | {"parameter:*": "B"}))
    built = ZOO[name]()
    pieces = searched(planner(name, ranks, storage_pins(built, "zero3", 1)))
    limit = (whole.predicted.bytes + 3 * pieces.predicted.bytes) // 4
    made = planner(name, ranks, DATA | {"parameter:*": "use=B"}, limit)
    plan, before = searched(made), searched(as_stored(made))
    assert part_apart(before) == 0.0
    assert part_apart(plan) > 0.5
    assert plan.predicted.bytes <= limit < whole.predicted.bytes
    assert plan.predicted.seconds < 0.99 * before.predicted.seconds
    assert plan.predicted.seconds < 0.99 * pieces.predicted.seconds
    for found in plan.parameters.values():
        assert found.placements.gradient == found.placements.optimizer
    check(name, plan)


def test_without_a_limit_pieces_are_taken_where_the_update_is_worth_more() -> None:
    whole = searched(planner("gpt2", 2, DATA | {"parameter:*": "B"}))
    made = planner("gpt2", 2, DATA | {"parameter:*": "use=B"})
    plan, before = searched(made), searched(as_stored(made))
    assert plan.search.status.startswith("optimal")
    assert part_apart(plan) > 0.5
    assert plan.predicted.seconds < 0.99 * whole.predicted.seconds
    assert plan.predicted.seconds < 0.99 * before.predicted.seconds
    check("gpt2", plan)


def test_of_equal_ways_the_one_that_holds_less_is_taken() -> None:
    """One microbatch gathers once, whether it stores or only updates in pieces."""
    made = planner("gpt2", 2, DATA | {"parameter:*": "use=B"}, count=1)
    assert part_apart(searched(made)) == 0.0
