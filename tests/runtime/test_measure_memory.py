"""Measured memory of a few calls whose allocations are known."""

from __future__ import annotations

import torch

from partita.runtime.measure_memory import Change, MeasuredMemory, measure_memory

CPU = torch.device("cpu")


def test_every_allocation_and_release_is_seen() -> None:
    x = torch.ones(64, 64)

    def run() -> torch.Tensor:
        y = torch.ops.aten.mul.Tensor(x, x)
        z = torch.ops.aten.mul.Tensor(y, y)
        del y
        return torch.ops.aten.mul.Tensor(z, x)

    size = 64 * 64 * 4
    found = measure_memory(run, (x,), CPU)
    assert found.held_bytes == size
    assert found.bytes_at[:4] == (2 * size, 3 * size, 2 * size, 3 * size)
    assert found.peak_bytes == 3 * size
    assert found.peak_op == "aten::mul"


def test_what_shares_memory_is_held_once() -> None:
    x = torch.ones(8, 8)
    found = measure_memory(lambda: None, (x, x.t(), x[2:]), CPU)
    assert found == MeasuredMemory(256, ())
    assert found.peak_bytes == 256


def test_what_is_on_another_device_does_not_count() -> None:
    found = measure_memory(lambda: None, (torch.ones(4, device="meta"),), CPU)
    assert found.held_bytes == 0


def test_the_outermost_op_is_named() -> None:
    x = torch.ones(6, 4).t()
    found = measure_memory(lambda: x.reshape(24), (), CPU)
    assert found.changes[0] == Change("aten::reshape", 96)
