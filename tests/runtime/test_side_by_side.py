"""Parameters that a program reads as one tensor are views of it."""

from __future__ import annotations

import torch
from tests.models.projected import built, planned
from torch import nn

import partita as pt
from partita.compiler.ir.program import InputKind, op_name
from partita.lowering import capture_for, lower
from partita.runtime.side_by_side import (
    PartOfRow,
    lay_side_by_side,
    read_as_one,
    role_of,
    rows_of,
)

ROWS = (("q.weight", "k.weight"), ("q.bias", "k.bias"), ("gate.weight", "up.weight"))


def test_what_puts_them_side_by_side_becomes_an_input() -> None:
    plan = planned()
    (lowered,) = lower(capture_for(built()[0], plan), plan)
    local = lowered.at((0,))
    assert set(rows_of(local)) == set(ROWS)
    found = read_as_one(local)
    assert found.inputs[: len(local.inputs)] == local.inputs
    assert set(found.inputs[len(local.inputs) :]) == set(map(role_of, ROWS))
    ops = [[op_name(n) for n in p.graph_module.graph.nodes] for p in (local, found)]
    assert [names.count("aten.cat.default") for names in ops] == [3, 0]
    assert rows_of(found) == ()
    assert read_as_one(found) is found


def test_parts_are_views_that_are_written_each_by_itself() -> None:
    shards = {name: torch.randn(n, 4) for name, n in (("a", 2), ("b", 3), ("c", 1))}
    before = {name: shard.clone() for name, shard in shards.items()}
    first_of = {"a": "a", "b": "b", "tied": "b", "c": "c"}
    (whole,) = lay_side_by_side(shards, [("a", "tied")], first_of).values()
    assert {n: x.tolist() for n, x in shards.items()} == {
        n: x.tolist() for n, x in before.items()
    }
    versions = shards["a"]._version
    shards["b"].fill_(2.0)
    assert torch.equal(whole, torch.cat([before["a"], torch.full((3, 4), 2.0)]))
    assert shards["a"]._version == versions
    assert all(shards[name].is_contiguous() for name in shards)


def test_values_in_other_memory_are_put_back_into_the_row() -> None:
    shards = {name: torch.ones(n, 4) for name, n in (("a", 2), ("none", 0), ("b", 3))}
    names = {name: name for name in shards}
    (whole,) = lay_side_by_side(shards, [("a", "none", "b")], names).values()
    parameters = {name: nn.Parameter(shard) for name, shard in shards.items()}
    parts = [PartOfRow.of(parameter) for parameter in parameters.values()]
    for name in ("none", "b"):
        parameters[name].data = torch.full_like(parameters[name], 2.0)
    for part in parts:
        part.put_back()
    assert whole.tolist() == [[1.0] * 4] * 2 + [[2.0] * 4] * 3
    with torch.no_grad():
        parameters["b"].fill_(3.0)
    assert whole.tolist() == [[1.0] * 4] * 2 + [[3.0] * 4] * 3


def test_a_step_reads_parameters_that_were_given_other_memory() -> None:
    model, x = built()
    program = pt.compile(model, planned(), device="cpu", compilation="eager")
    joined = [p for name, p in program.named_parameters() if name != "down.weight"]
    for parameter in joined:
        parameter.data = torch.zeros_like(parameter)
    assert program.step(x) == 0.0
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(joined) + 1, joined)
    assert program.step(x) > 0.0


def test_the_role_names_what_lies_side_by_side() -> None:
    role = role_of(("q.bias", "k.bias"))
    assert role.kind is InputKind.JOINED
    assert role.name == "q.bias + k.bias"
