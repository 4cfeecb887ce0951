"""What a rank frees stays with it: the system is not asked for the same again."""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path

import torch

from partita.runtime.heap import keep_freed_memory

_NUMEL = 16 << 20
_PAGES = 4 * _NUMEL // resource.getpagesize()


def faults_of_a_step() -> int:
    """Return the pages that the system maps for a tensor that was there before."""
    for _ in range(2):
        torch.ones(_NUMEL)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
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
    """Print the faults of a step, whether the heap can keep pages, the faults then."""
    import_module("partita.api")  # a rank's heap has free blocks for what is small
    print(faults_of_a_step(), keep_freed_memory(), faults_of_a_step())
    print(is_one_heap())


def test_a_tensor_that_was_freed_leaves_its_pages_to_the_next() -> None:
    """Every page is mapped again without it, none with it; threads share it."""
    run = [sys.executable, __file__]
    shown = subprocess.run(run, check=True, capture_output=True, text=True).stdout
    before, is_kept, after, is_one = shown.split()
    assert (is_kept, is_one) == ("True", "True")
    assert int(before) >= _PAGES > 100 * int(after)


if __name__ == "__main__":
    main()
