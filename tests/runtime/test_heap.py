"""What a rank frees stays with it: the system is not asked for the same again."""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
from pathlib import Path

import torch

from partita.runtime.heap import keep_freed_memory

_NUMEL = 9 << 20  # more than the C library ever keeps by itself: 32 MiB
_PAGES = 4 * _NUMEL // resource.getpagesize()
_STEPS = 16


def faults_of_steps() -> int:
    """Return the pages that the system maps for tensors that were there before.

    At first the heap grows, wherever something small was put behind a tensor: the next
    needs a place of its own, until what is small has places, too.
    """
    for _ in range(4 * _STEPS):
        torch.ones(_NUMEL)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(_STEPS):
        torch.ones(_NUMEL)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def is_one_heap() -> bool:
    """Return whether another thread's tensor lies where this one's do."""
    made: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: made.append(torch.ones(_NUMEL)))
    thread.start()
    thread.join()
    maps = Path("/proc/self/maps").read_text().splitlines()
    heap = next(line.split()[0] for line in maps if line.endswith("[heap]"))
    first, last = (int(address, 16) for address in heap.split("-"))
    return first <= made[0].data_ptr() < last


def main() -> None:
    """Print the faults of steps, whether the heap can keep pages, the faults then."""
    print(faults_of_steps(), keep_freed_memory(), faults_of_steps())
    print(is_one_heap())


def test_a_tensor_that_was_freed_leaves_its_pages_to_the_next() -> None:
    """Every step maps its pages anew without it, none with it; threads share it."""
    run = [sys.executable, __file__]
    shown = subprocess.run(run, check=True, capture_output=True, text=True).stdout
    before, is_kept, after, is_one = shown.split()
    assert (is_kept, is_one) == ("True", "True")
    assert int(before) >= _STEPS * _PAGES
    assert int(after) < _PAGES


if __name__ == "__main__":
    main()
