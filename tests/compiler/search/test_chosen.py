"""What is taken apart stands beside the program as it does inside of it."""

from __future__ import annotations

import random
from functools import cache

import pytest
import torch
from tests.compiler.search.hand_made import machine
from tests.models.captured import captured
from torch import Tensor, nn

from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import Phase, Value, info
from partita.compiler.search.chosen import Chosen, Consumers, read_choices
from partita.compiler.search.draw import draw_choices
from partita.compiler.search.pose import Posed
from partita.one_mesh.planner import Planner
from partita.options import Options


@cache
def posed() -> tuple[Planner, Posed]:
    _, known = captured("gpt2")
    planner = Planner(
        known, "gpt2", Mesh.parse("dp=2,tp=2"), Options(hardware=machine())
    )
    return planner, planner.posed


def chosen(seed: int) -> Chosen:
    planner, problem = posed()
    choices = draw_choices(random.Random(seed), problem)
    return read_choices(planner.captured.program, problem, choices)


def told(value: Value) -> tuple[str, int]:
    return info(value.node).key, value.index


def by_keys(found: Consumers) -> list[tuple[tuple[str, int], str, dict[str, Phase]]]:
    return [(told(value), str(how), who) for (value, how), who in found.items()]


@pytest.mark.parametrize("seed", range(4))
def test_parts_beside_the_program_are_those_inside(seed: int) -> None:
    beside = chosen(seed)
    inside = beside.whole
    assert beside.expansions
    assert not inside.expansions
    for one, other in zip(beside.nodes, inside.nodes, strict=True):
        assert info(one) == info(other)
        assert beside.nodes[one] == inside.nodes[other]
        pairs = zip(beside.used[one], inside.used[other], strict=True)
        assert all(told(a) == told(b) for a, b in pairs)
    for (a, role), (b, same) in zip(beside.results, inside.results, strict=True):
        assert (told(a), role) == (told(b), same)


@pytest.mark.parametrize("seed", range(4))
def test_who_wants_what_is_the_same(seed: int) -> None:
    beside = chosen(seed)
    inside = beside.whole
    for one, other in (
        (beside.boxed(), inside.boxed()),
        (beside.consumers(), inside.consumers()),
    ):
        assert by_keys(one) == by_keys(other)


def test_the_program_stays_as_it_was_captured() -> None:
    planner, _ = posed()
    before = [info(node).key for node in planner.captured.program.nodes()]
    assert chosen(0).whole.program.graph is not planner.captured.program.graph
    assert [info(node).key for node in planner.captured.program.nodes()] == before


def test_a_node_whose_operand_is_taken_apart_is_not_the_one_drafted_before() -> None:
    planner, _ = posed()
    for seed in range(4):
        plan = planner.random(seed)
        used = {ref.key for node in plan.nodes.values() for ref in node.operands}
        assert used <= plan.nodes.keys()


@pytest.mark.parametrize("seed", range(4))
def test_a_parameter_is_used_as_its_first_user_in_the_order_wants_it(seed: int) -> None:
    planner, _ = posed()
    plan = planner.random(seed)
    assert plan.expanded
    for name, parameter in plan.parameters.items():
        asks = (
            wanted
            for key in plan.order
            for ref, wanted in zip(
                plan.nodes[key].operands,
                plan.nodes[key].signature.operands,
                strict=True,
            )
            if ref.key == f"parameter:{name}"
        )
        assert parameter.placements.use == next(asks)


class CastParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(4, 4))
        self.v = nn.Parameter(torch.ones(4, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x @ self.w, self.v.to(torch.bfloat16)


def test_a_parameter_whose_narrow_copy_leaves_is_used_as_that_wants_it() -> None:
    options = Options(hardware=machine(), train=False)
    mesh = Mesh.parse("dp=2,tp=2")
    planner = Planner.of(CastParameter(), (torch.ones(4, 4),), {}, mesh, options)
    for seed in range(6):
        plan = planner.random(seed)
        cast = next(n for n in plan.nodes.values() if n.op == "aten._to_copy.default")
        assert plan.parameters["v"].placements.use == cast.signature.operands[0]
        plan.validate()
