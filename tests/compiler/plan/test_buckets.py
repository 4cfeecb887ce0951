"""What a bucket sends: payloads side by side, one latency, its own copies."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.compiler.search.hand_made import machine

from partita.compiler.cost.boxing import step_seconds
from partita.compiler.cost.collectives import CollectiveKind, seconds, wire_bytes
from partita.compiler.cost.step import find_step
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.buckets import Sent

MESH = Mesh(dp=2, tp=3)
HARDWARE = machine(alpha_s=1e-3, bytes_per_s=1e9, launch_s=1e-6, memory_bytes_per_s=2e9)


def sent(changes: list[tuple[str, str, str]], axis: int, times: int = 1) -> Sent:
    """Return the bucket of some steps, each a type and its placements."""
    parts = []
    for text, before, after in changes:
        type_ = TensorType.parse(text)
        ends = Placement.parse(before), Placement.parse(after)
        step = find_step(type_.shape, *ends, axis, MESH)
        assert step is not None
        parts.append((type_, step))
    return Sent(tuple(parts), MESH, times)


SUMS = [("f32[8, 4]", "(P(sum), B)", "(B, B)"), ("f32[6]", "(P(sum), B)", "(B, B)")]


@pytest.mark.parametrize(
    ("kind", "saved_s"),
    [
        ("cuda", 2e-3),  # there and back
        ("cpu", 1e-3 + 2e-6),  # an exchange, what is repeated for it and added up
    ],
)
def test_a_sum_of_two_tensors_is_one_message(kind: str, saved_s: float) -> None:
    hardware = replace(HARDWARE, device=replace(HARDWARE.device, kind=kind))
    found = sent(SUMS, 0, times=3)
    assert (found.kind, found.axis, found.payload) == ("all_reduce", "dp", 4 * 38)
    assert (found.bytes(hardware), found.buffer_bytes) == (3 * 4 * 38, 4 * 38)
    alone = sum(step_seconds(*part, MESH, hardware) for part in found.parts)
    assert 3 * alone - found.seconds(hardware) == pytest.approx(3 * saved_s)


def test_what_is_gathered_is_copied_in_and_out() -> None:
    change = ("f32[8, 4]", "(B, S(0))", "(B, B)")
    found = sent([change, ("f32[7]", "(B, S(0))", "(B, B)")], 1)
    payload = 4 * (3 * 4 + 3)  # padded to the largest shard
    assert (found.kind, found.payload) == ("all_gather", payload)
    assert found.buffer_bytes == 3 * payload
    alone = sum(step_seconds(*part, MESH, HARDWARE) for part in found.parts)
    copies = 3 * 1e-6 + 2 * (payload + 3 * payload) / 2e9
    saved = alone - found.seconds(HARDWARE)
    assert saved == pytest.approx(2e-3 - copies, rel=1e-6)  # of a ring of 3


def test_the_rank_that_sends_most_counts() -> None:
    changes = [("f32[3]", "(S(0), P(sum))", "(S(0), B)")]
    assert sent(changes, 1).payload == 4 * 2


@pytest.mark.parametrize("rows", [8, 4096])
def test_all_parts_together_say_how_a_bucket_is_carried_out(rows: int) -> None:
    """Three rows are exchanged, more are added up by the machine."""
    change = f"f32[{rows}, 4]", "(B, P(sum))", "(B, B)"
    one, many = sent([change], 1), sent([change] * 64, 1)
    hardware = machine(alpha_s=1e-4, bytes_per_s=1e8, memory_bytes_per_s=1e9)
    for found in (one, many):
        wire = wire_bytes(CollectiveKind.ALL_REDUCE, found.payload, 3)
        own_s = seconds(CollectiveKind.ALL_REDUCE, wire, 3, hardware.legs(MESH, 1))
        is_exchanged = found.payload < 16384
        assert (found.message_s(hardware) < own_s) is is_exchanged
        others = 2 * found.payload
        assert found.bytes(hardware) == (others if is_exchanged else wire)
