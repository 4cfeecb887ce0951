"""A transfer brings each receiver its shard, and nothing twice."""

from __future__ import annotations

from collections import Counter
from math import prod
from unittest.mock import patch

import pytest
import torch
from hypothesis import example, given
from tests.compiler.ir.transfer_cases import (
    EMPTY,
    NO_DIMS,
    SEGMENTED,
    Case,
    cases,
    on,
)

from partita.compiler.errors import BadPlacement
from partita.compiler.ir import transfer as module
from partita.compiler.ir.layout import shard_shape
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.transfer import (
    Placed,
    received_bytes,
    sent_bytes,
    transfer,
)
from partita.runtime.shards import take_shard


def shards_of(shape: tuple[int, ...], at: Placed) -> dict[int, torch.Tensor]:
    """Cut a tensor whose elements are numbered."""
    whole = torch.arange(prod(shape)).reshape(shape)
    cut = (
        take_shard(whole, at.placement, at.mesh, at.coordinates(r)) for r in at.ranks
    )
    return dict(zip(at.ranks, cut, strict=True))


@given(cases())
@example(SEGMENTED)
@example(EMPTY)
@example(NO_DIMS)
def test_every_receiver_gets_its_shard_each_element_once(case: Case) -> None:
    shape, source, target = case
    held, wanted = shards_of(shape, source), shards_of(shape, target)
    got = {rank: torch.full_like(shard, -1) for rank, shard in wanted.items()}
    for message in transfer(shape, source, target):
        for taken, put in zip(message.taken, message.put, strict=True):
            assert bool((got[message.receiver][put] == -1).all())
            got[message.receiver][put] = held[message.sender][taken]
    for rank, shard in wanted.items():
        assert torch.equal(got[rank], shard)


@given(cases())
@example(SEGMENTED)
def test_nothing_is_sent_that_the_receiver_has(case: Case) -> None:
    shape, source, target = case
    messages = transfer(shape, source, target)
    held, wanted = shards_of(shape, source), shards_of(shape, target)
    for rank, shard in wanted.items():
        own = held[rank].flatten().tolist() if rank in held else []
        lacked = set(shard.flatten().tolist()) - set(own)
        assert received_bytes(messages, rank, 4) == 4 * len(lacked)
    total = sum(received_bytes(messages, rank, 4) for rank in wanted)
    assert sum(sent_bytes(messages, rank, 4) for rank in held) == total


@given(cases())
def test_two_ranks_exchange_one_message_and_none_is_empty(case: Case) -> None:
    messages = transfer(*case)
    ways = [(m.sender, m.receiver) for m in messages]
    assert ways == sorted(set(ways))
    assert all(m.numel > 0 for m in messages)


@given(cases())
def test_those_who_hold_the_same_share_the_work(case: Case) -> None:
    shape, source, target = case
    wire = [m for m in transfer(shape, source, target) if m.on_wire]
    held = {r: tuple(s.flatten().tolist()) for r, s in shards_of(shape, source).items()}
    for piece, copies in Counter(held.values()).items():
        own = [m.numel for m in wire if held[m.sender] == piece]
        for rank in source.ranks:
            if own and held[rank] == piece:
                load = sent_bytes(wire, rank, 1)
                assert load <= sum(own) / copies + max(own)


@pytest.mark.parametrize(
    ("source", "target", "ways"),
    [
        (on(range(2), "B"), on(range(2, 4), "B"), [(0, 2), (1, 3)]),
        (on(range(4), "B"), on(range(4, 8), "S(0)"), [(i, i + 4) for i in range(4)]),
        (on(range(2), "B"), on(range(2, 5), "B"), [(0, 2), (1, 3), (1, 4)]),
        # each half of the rows has two copies, and goes to the ranks beside it
        (
            on(range(4), "(S(0), B)", a=2, b=2),
            on(range(4, 8), "S(0)"),
            [(i, i + 4) for i in range(4)],
        ),
        # who has it keeps it: the others serve those who do not
        (on(range(3), "B"), on(range(2, 5), "B"), [(0, 3), (2, 2), (2, 4)]),
        (on(range(2), "S(0)"), on(range(2), "S(0)"), [(0, 0), (1, 1)]),
    ],
)
def test_who_sends_to_whom(
    source: Placed, target: Placed, ways: list[tuple[int, int]]
) -> None:
    found = transfer((8, 4), source, target)
    assert [(m.sender, m.receiver) for m in found] == ways


def test_segments_that_lie_side_by_side_are_one_region() -> None:
    whole, cut = on(range(1), "S(0; 3|4)"), on(range(1, 2), "B")
    (message,) = transfer((7, 2), whole, cut)
    assert message.taken == message.put == ((slice(0, 7), slice(0, 2)),)


def test_a_partial_value_is_no_source_and_no_target() -> None:
    with pytest.raises(AssertionError, match="box it before it is moved"):
        on(range(2), "P(sum)")


def test_ranks_are_those_of_the_mesh() -> None:
    for ranks in ((0, 1, 2), (1, 1)):
        with pytest.raises(AssertionError):
            Placed(Mesh(a=2), ranks, Placement.parse("B"))


def test_a_placement_that_does_not_fit_is_refused() -> None:
    with pytest.raises(BadPlacement, match=r"S\(1\) names dim 1"):
        transfer((4,), on(range(2), "B"), on(range(2), "S(1)"))


def test_a_transfer_is_known_the_second_time() -> None:
    source, target = on(range(2), "S(0)"), on(range(2, 4), "S(1)")
    assert transfer((4, 4), source, target) is transfer((4, 4), source, target)
    coords = target.coordinates(3)
    assert shard_shape((4, 4), target.placement, target.mesh, coords) == (4, 2)


def test_only_shards_that_meet_are_compared() -> None:
    ranks = 96
    source, target = on(range(ranks), "S(0)"), on(range(ranks, 2 * ranks), "S(0)")
    overlaps = vars(module)["_overlaps"]
    with patch.object(module, "_overlaps", wraps=overlaps) as compared:
        assert len(transfer((2 * ranks, 1), source, target)) == ranks
    assert compared.call_count == 2 * ranks  # of each dim one; there are 9216 pairs
