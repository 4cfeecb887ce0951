"""What a rank frees stays with it: the system is not asked for the same again."""

from __future__ import annotations

import resource
import subprocess
import sys

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


def main() -> None:
    """Print the faults of a step, whether the heap can keep pages, the faults then."""
    print(faults_of_a_step(), keep_freed_memory(), faults_of_a_step())


def test_a_tensor_that_was_freed_leaves_its_pages_to_the_next() -> None:
    """Every page is mapped again without it, none with it."""
    run = [sys.executable, __file__]
    shown = subprocess.run(run, check=True, capture_output=True, text=True).stdout
    before, is_kept, after = shown.split()
    assert is_kept == "True"
    assert int(before) >= _PAGES > 100 * int(after)


if __name__ == "__main__":
    main()
