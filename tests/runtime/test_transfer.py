"""Tensors go from stage to stage: in one process, and between real ranks."""

from __future__ import annotations

from math import prod

import pytest
import torch
import torch.distributed as dist
from hypothesis import example, given
from tests.compiler.ir.transfer_cases import EMPTY, NO_DIMS, SEGMENTED, Case, cases, on

from partita.compiler.ir.layout import shard_shape
from partita.compiler.ir.transfer import Placed, transfer
from partita.runtime.groups import start
from partita.runtime.launch import launch
from partita.runtime.shards import take_shard
from partita.runtime.transfer import Pending, Sending, move, receive, send

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.complex64)


def numbered(shape: tuple[int, ...], dtype: torch.dtype = torch.int64) -> torch.Tensor:
    numbers = torch.arange(1, prod(shape) + 1).reshape(shape)
    return numbers % 2 == 0 if dtype == torch.bool else numbers.to(dtype)


def shard_at(whole: torch.Tensor, at: Placed, rank: int) -> torch.Tensor:
    return take_shard(whole, at.placement, at.mesh, at.coordinates(rank))


@given(cases())
@example(SEGMENTED)
@example(EMPTY)
@example(NO_DIMS)
def test_shards_move_in_one_process(case: Case) -> None:
    shape, source, target = case
    whole = numbered(shape)
    shards = {rank: shard_at(whole, source, rank) for rank in source.ranks}
    moved = move(shape, source, target, shards)
    assert list(moved) == list(target.ranks)
    for rank, shard in moved.items():
        assert torch.equal(shard, shard_at(whole, target, rank))


def test_what_is_moved_is_new_also_where_it_stays() -> None:
    at = on(range(1), "B")
    shard = torch.zeros(3)
    moved = move((3,), at, at, {0: shard})
    shard += 1
    assert torch.equal(moved[0], torch.zeros(3))


def expect(
    shape: tuple[int, ...], dtype: torch.dtype, case: tuple[Placed, Placed], tag: int
) -> Pending | None:
    source, target = case
    if dist.get_rank() not in target.ranks:
        return None
    coords = target.coordinates(dist.get_rank())
    local = shard_shape(shape, target.placement, target.mesh, coords)
    return receive(local, dtype, CPU, transfer(shape, source, target), tag)


def hand_on(
    whole: torch.Tensor, case: tuple[Placed, Placed], tag: int
) -> tuple[Sending, torch.Tensor] | None:
    source, target = case
    if dist.get_rank() not in source.ranks:
        return None
    shard = shard_at(whole, source, dist.get_rank()).clone()
    return send(shard, transfer(tuple(whole.shape), source, target), tag), shard


CASES: list[Case] = [
    ((6, 4), on(range(2), "S(0)"), on(range(2, 4), "S(0)")),
    ((6, 4), on(range(2), "S(0)"), on(range(2, 4), "S(1)")),
    ((4, 2), on(range(2), "S(1)"), on(range(2, 4), "S(0)")),
    ((6, 4), on(range(2), "B"), on(range(2, 4), "B")),
    ((7, 5), on(range(1), "B"), on(range(1, 4), "S(1)")),
    ((7, 5), on(range(3), "S(0)"), on(range(3, 4), "B")),
    # rank 2 is in both stages
    ((7, 6), on(range(3), "S(0; 3|4)"), on(range(2, 4), "S(1; 2|1|3)")),
    ((3,), on(range(2), "S(0)"), on(range(4), "S(0)")),
    ((0, 4), on(range(2), "S(1)"), on(range(2, 4), "S(0)")),
    ((), on(range(1), "B"), on(range(1, 4), "B")),
]


def transfer_all() -> int:
    count = 0
    for dtype in DTYPES:
        for tag, (shape, *case) in enumerate(CASES):
            source, target = case
            whole = numbered(shape, dtype)
            pending = expect(shape, dtype, (source, target), tag)
            sent = hand_on(whole, (source, target), tag)
            if pending is not None:
                found = pending.wait(sent[1] if sent else None)
                want = shard_at(whole, target, dist.get_rank())
                assert found.dtype == dtype
                assert torch.equal(found, want), (shape, str(source), str(target))
                count += 1
            if sent is not None:
                sent[0].wait()
    return count


def keep_several_in_flight() -> int:
    count = 0
    case = on(range(2), "S(0)"), on(range(2, 4), "S(1)")
    wholes = {tag: numbered((8, 6)) * 100 + tag for tag in (3, 1, 4, 2, 0)}
    # asked for in one order, sent in another, waited for in a third
    pending = {tag: expect((8, 6), torch.int64, case, tag) for tag in sorted(wholes)}
    dist.barrier()
    handed_on = [hand_on(whole, case, tag) for tag, whole in wholes.items()]
    sendings = [found[0] for found in handed_on if found is not None]
    del handed_on  # and with it the shards
    for tag in sorted(wholes, reverse=True):
        waiting = pending[tag]
        if waiting is not None:
            want = shard_at(wholes[tag], case[1], dist.get_rank())
            assert torch.equal(waiting.wait(), want), tag
            count += 1
    for sending in sendings:
        sending.wait()
    return count


def count_copies() -> tuple[int, int]:
    """Return how many messages were sent, and received, where their elements lie."""
    sent_there = received_there = 0
    for target in (on(range(1, 2), "B"), on(range(1, 4), "S(0)")):
        case = on(range(1), "B"), target
        pending = expect((6, 4), torch.float32, case, 0)
        sent = hand_on(numbered((6, 4), torch.float32), case, 0)
        if sent is not None:
            sending, shard = sent
            here = shard.untyped_storage().data_ptr()
            pointers = [b.untyped_storage().data_ptr() for b in sending.buffers]
            sent_there += pointers.count(here)
            sending.wait()
        if pending is not None:
            here = pending.wait().untyped_storage().data_ptr()
            buffers = [arrival.buffer for arrival in pending.arrivals]
            pointers = [b.untyped_storage().data_ptr() for b in buffers]
            received_there += pointers.count(here)
    return sent_there, received_there


Counts = tuple[int, int, tuple[int, int]]


def on_real_ranks() -> Counts:
    start("cpu")
    return transfer_all(), keep_several_in_flight(), count_copies()


@pytest.fixture(scope="module")
def counted() -> list[Counts]:
    return launch(f"{__file__}:on_real_ranks", 4)  # once: starting takes longest


@pytest.mark.dist
def test_shards_arrive_on_real_ranks(counted: list[Counts]) -> None:
    want = [sum(rank in target.ranks for _, _, target in CASES) for rank in range(4)]
    assert [found for found, _, _ in counted] == [len(DTYPES) * n for n in want]


@pytest.mark.dist
def test_tensors_in_flight_are_told_apart_by_tags(counted: list[Counts]) -> None:
    assert [found for _, found, _ in counted] == [0, 0, 5, 5]


@pytest.mark.dist
def test_what_lies_together_is_not_copied(counted: list[Counts]) -> None:
    assert [found for _, _, found in counted] == [(4, 0), (0, 2), (0, 1), (0, 1)]
