import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from partita.compiler.ir.layout import shard_shape
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Broadcast, Placement, Sharding, Split
from partita.runtime.groups import bind, bind_stages
from partita.runtime.launch import launch
from partita.runtime.reshard import plain, regions, reshard
from partita.runtime.shards import assemble, take_shard

SHAPE = (7, 6)
SEGMENTS = {0: (3, 4), 1: (2, 1, 3)}
SHARDINGS: list[Sharding] = [
    Broadcast(),
    *(Split(dim) for dim in SEGMENTS),
    *(Split(dim, segments) for dim, segments in SEGMENTS.items()),
]


def is_legal(shardings: tuple[Sharding, ...]) -> bool:
    """Whether a later axis keeps the segments of an earlier one of its dim."""
    splits = [s for s in shardings if isinstance(s, Split)]
    return len({(s.dim, s.segments) for s in splits}) == len({s.dim for s in splits})


def placements(ndim: int) -> st.SearchStrategy[Placement]:
    shardings = st.tuples(*[st.sampled_from(SHARDINGS)] * ndim)
    return shardings.filter(is_legal).map(Placement)


@given(st.data(), st.lists(st.integers(1, 3), min_size=1, max_size=3))
@settings(deadline=None)
def test_every_element_arrives_once(data: st.DataObject, sizes: list[int]) -> None:
    mesh = Mesh(**{f"axis{i}": size for i, size in enumerate(sizes)})
    source = data.draw(placements(mesh.ndim))
    target = data.draw(placements(mesh.ndim))
    whole = torch.arange(42.0).reshape(SHAPE)
    shards: list[torch.Tensor] = []
    for to in mesh.all_coordinates():
        shard = torch.full(shard_shape(SHAPE, target, mesh, to), -1.0)
        for at in mesh.all_coordinates():
            sent = take_shard(whole, source, mesh, at)
            outgoing, incoming = regions(SHAPE, source, target, mesh, at, to)
            for there, here in zip(outgoing, incoming, strict=True):
                assert bool((shard[here] == -1).all())
                shard[here] = sent[there]
        shards.append(shard)
        assert torch.equal(shard, take_shard(whole, target, mesh, to))
    assert torch.equal(assemble(shards, SHAPE, target, mesh), whole)


def test_a_plain_placement_has_no_segments() -> None:
    segmented = Placement.parse("(S(0; 3|4), B, P(sum), S(1))")
    assert str(plain(segmented)) == "(S(0), B, P(sum), S(1))"


def reshard_all() -> int:
    count = 0
    mesh = Mesh(dp=1, tp=2)
    groups = bind(mesh, "cpu")
    texts = ["B", "S(0)", "S(1)", "S(0; 3|4)", "S(1; 2|1|3)", "P(sum)", "P(max)"]
    for dtype in (torch.float32, torch.bool, torch.int64):
        whole = torch.arange(42).reshape(SHAPE).remainder(5).to(dtype)
        for before in texts[:5] if dtype == torch.bool else texts:
            for after in texts[:5]:
                source, target = (Placement.parse(f"(B, {s})") for s in (before, after))
                shard = take_shard(whole, source, mesh, groups.coordinates)
                found = reshard(shard, SHAPE, source, target, groups)
                want = take_shard(whole, target, mesh, groups.coordinates)
                assert torch.equal(found, want), (before, after)
                count += 1
    return count


@pytest.mark.dist
def test_placements_change_on_real_ranks() -> None:
    assert launch(f"{__file__}:reshard_all", 2) == [95, 95]


def reshard_in_stages() -> bool:
    """Change placements on the ranks of one stage, beside those of another."""
    stages = (Mesh(tp=1), (0,)), (Mesh(tp=2), (1, 2))
    groups = next(iter(bind_stages(Mesh(ranks=3), stages, "cpu").values()))
    whole = torch.arange(42.0).reshape(SHAPE)
    source, target = Placement.parse("(S(0; 3|4))"), Placement.parse("(S(0))")
    shard = take_shard(whole, source, groups.mesh, groups.coordinates)
    found = reshard(shard, SHAPE, source, target, groups)
    return torch.equal(
        found, take_shard(whole, target, groups.mesh, groups.coordinates)
    )


@pytest.mark.dist
def test_placements_change_within_a_stage() -> None:
    assert launch(f"{__file__}:reshard_in_stages", 3) == [True] * 3
