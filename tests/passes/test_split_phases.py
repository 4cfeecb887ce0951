"""A stage's forward and backward apart: every call once, what crosses is saved."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from tests.models.dropout import with_dropout
from tests.models.searched import searched

import partita as pt
from partita.compiler.capture.capture import capture
from partita.compiler.capture.inputs import name_leaves
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.program import InputKind, OutputKind, has_info, info
from partita.lowering import Lowered
from partita.one_mesh.planner import Planner
from partita.passes.split_phases import split_phases
from partita.runtime.feeds import arguments, own_feeds, shards_of


def local_of(name: str, mesh: str = "tp=2") -> LocalProgram:
    model, args, kwargs = with_dropout(name)
    captured = capture(model, args, kwargs)
    planner = Planner(captured, name, pt.Mesh.parse(mesh), pt.Options())
    return Lowered.of(captured, searched(planner), pt.default_rules).at((0,))


def calls(program: LocalProgram) -> Counter[str]:
    nodes = program.graph_module.graph.nodes
    return Counter(info(node).key for node in nodes if has_info(node))


@pytest.mark.parametrize("num_parts", [2, 3])
def test_every_call_is_in_one_part(num_parts: int) -> None:
    local = local_of("gpt2")
    parts = split_phases(local, num_parts)
    entering = {
        info(n).key for n in local.graph_module.graph.find_nodes(op="placeholder")
        if has_info(n)
    }  # fmt: skip
    found = sum((calls(part) for part in parts), Counter[str]())
    assert {k: v for k, v in found.items() if k not in entering} == {
        k: v for k, v in calls(local).items() if k not in entering
    }
    leaving = [role for part in parts for role in part.outputs]
    kept = [role for role in leaving if role.kind is not OutputKind.SAVED]
    assert sorted(map(str, kept)) == sorted(map(str, local.outputs))


def test_gradients_of_parameters_come_apart_from_what_is_handed_on() -> None:
    forward, handed, weights = split_phases(local_of("mlp"), 3)
    assert not handed.outputs  # a first stage hands nothing on
    kinds = {role.kind for role in weights.outputs}
    assert kinds == {OutputKind.GRADIENT}
    saved = {role.name for role in forward.outputs if role.kind is OutputKind.SAVED}
    used = {role.name for role in weights.inputs if role.kind is InputKind.SAVED}
    assert used == saved


def test_the_parts_compute_what_the_whole_does() -> None:
    model, args, kwargs = with_dropout("mlp")
    captured = capture(model, args, kwargs)
    planner = Planner(captured, "mlp", pt.Mesh(dp=1), pt.Options())
    local = Lowered.of(captured, searched(planner), pt.default_rules).at((0,))
    values = {
        (InputKind.PARAMETER, name): p.detach() for name, p in model.named_parameters()
    }
    leaves = name_leaves(model, args, kwargs)
    values |= {(InputKind.INPUT, name): leaf for name, leaf in leaves.items()}
    feeds = {**own_feeds(local), **shards_of(local, values)}
    with torch.no_grad():
        wanted = local.graph_module.forward(*arguments(local, feeds))
        found = {}
        for part in split_phases(local, 2):
            made = part.graph_module.forward(*arguments(part, feeds))
            for role, value in zip(part.outputs, made, strict=True):
                if role.kind is OutputKind.SAVED:
                    feeds[InputKind.SAVED, role.name] = value
                found[role] = value
    for role, value in zip(local.outputs, wanted, strict=True):
        assert torch.equal(found[role], value), role
