"""Groups of small ops: convex, without a boxing inside, and only where they pay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

import networkx as nx
import pytest
from tests.models.captured import captured
from tests.models.searched import searched

from partita.compiler.hardware.profile import Hardware, load_hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.plan.plan import Plan
from partita.compiler.rules.table import default_rules
from partita.compiler.search import fusion
from partita.compiler.search.fusible import Fusible
from partita.compiler.search.fusion import add_fusion, choose_groups
from partita.one_mesh.planner import Planner
from partita.options import Options

CASES = [("gpt2", "tp=3"), ("gpt2", "dp=2,tp=2"), ("llama", "tp=2")]


def hardware(memory_bytes_per_s: float = 1e7, launch_s: float = 5e-6) -> Hardware:
    """Return a machine whose memory is so slow that nearly every group pays."""
    known = load_hardware("cpu-gloo")
    device = replace(
        known.device, memory_bytes_per_s=memory_bytes_per_s, launch_s=launch_s
    )
    return replace(known, device=device)


@lru_cache(maxsize=2)
def planner(name: str, mesh: str) -> Planner:
    options = Options(hardware=hardware())
    return Planner(captured(name)[1], name, Mesh.parse(mesh), options)


def groups_of(name: str, plan: Plan) -> tuple[fusion.Group, ...]:
    return choose_groups(plan, captured(name)[1].program, default_rules)


def contracted(plan: Plan, groups: Mapping[str, int]) -> nx.DiGraph[str | int]:
    """Return the plan's graph with each group one node."""
    graph: nx.DiGraph[str | int] = nx.DiGraph()
    for start, end in plan.graph().edges():
        a, b = groups.get(start, start), groups.get(end, end)
        if a != b:
            graph.add_edge(a, b)
    return graph


@pytest.mark.parametrize(("name", "mesh"), CASES)
def test_groups_are_disjoint_convex_and_hold_no_boxing(name: str, mesh: str) -> None:
    for seed in range(2):
        plan = planner(name, mesh).random(seed)
        groups = groups_of(name, plan)
        assert groups
        keys = Counter(key for group in groups for key in group.keys)
        assert set(keys.values()) == {1}
        member = {k: i for i, group in enumerate(groups) for k in group.keys}
        assert nx.is_directed_acyclic_graph(contracted(plan, member))
        for start, end, boxing in plan.graph().edges(data="boxing"):
            if start in member and member[start] == member.get(end):
                assert boxing == ""
        for group in groups:
            halves = {plan.nodes[key].phase == "forward" for key in group.keys}
            assert len(halves) == 1
            assert group.saved_s > 0


def test_members_compute_and_views_stand_between_them() -> None:
    plan = searched(planner("gpt2", "tp=2"))
    working = Fusible.of(captured("gpt2")[1].program, default_rules).working
    num_views = 0
    for group in groups_of("gpt2", plan):
        members = set(group.keys)
        assert len(members & working) > 1
        users = {
            ref.key: {k for k in members if ref in plan.nodes[k].operands}
            for k in members
            for ref in plan.nodes[k].operands
        }
        for view in members - working:
            rule = default_rules.get(plan.nodes[view].op)
            assert rule is not None
            assert rule.free
            assert {ref.key for ref in plan.nodes[view].operands} & members
            assert users[view]
            num_views += 1
    assert num_views > 0


def test_gelu_of_gpt2_is_one_group_forward_and_one_backward() -> None:
    plan = searched(planner("gpt2", "tp=2"))
    found = [g.keys for g in groups_of("gpt2", plan) if "h.0.mlp.act" in g.keys[0]]
    sizes = [len(keys) for keys in found]
    assert [n for n in sizes if n > 2] == [8, 11]
    assert sum(key.endswith("/tanh/0") for keys in found for key in keys) == 1


def test_a_group_must_pay_for_its_call() -> None:
    plan = searched(planner("mlp", "tp=2"))
    assert groups_of("mlp", plan)
    seconds = (plan.nodes[key].seconds for key in plan.order)
    dear = replace(plan, hardware=hardware(launch_s=sum(seconds)).to_dict())
    assert groups_of("mlp", dear) == ()


def test_what_is_saved_is_predicted() -> None:
    plan = searched(planner("mlp", "tp=2"))
    fused = add_fusion(plan, captured("mlp")[1].program, default_rules)
    groups = groups_of("mlp", plan)
    assert fused.fusion == tuple(group.keys for group in groups)
    saved_s = sum(group.saved_s for group in groups)
    assert plan.predicted.seconds - fused.predicted.seconds == pytest.approx(saved_s)
    parts = fused.predicted.seconds_by_part.values()
    assert sum(parts) == pytest.approx(fused.predicted.seconds)
    fused.validate()
    assert Plan.from_dict(fused.to_dict()).fusion == fused.fusion


def test_options_write_groups_only_when_asked() -> None:
    for fuse in (False, True):
        options = Options(hardware=hardware(), fuse=fuse)
        plan = searched(Planner(captured("mlp")[1], "mlp", Mesh(tp=2), options))
        assert bool(plan.fusion) is fuse
    assert Options().fuse is False


def test_groups_that_pay_on_a_usual_machine_are_whole() -> None:
    options = Options(fuse=True)
    found = searched(Planner(captured("llama")[1], "llama", Mesh(tp=2), options))
    groups = {key: i for i, group in enumerate(found.fusion) for key in group}
    assert groups
    assert nx.is_directed_acyclic_graph(contracted(found, groups))
    assert found.predicted.bytes == found.memory().peak_bytes
    parts = found.predicted.bytes_by_part.values()
    assert sum(parts) == found.predicted.bytes
