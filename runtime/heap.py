"""Memory that a rank on a CPU frees stays with it, for the next that asks.

The C library gives a large block back to the system as soon as it is freed, and the
system clears and maps every page of the next one anew: on two cores a fifth of the step
of a model with large tensors. A step asks for the same blocks every time, so that what
the heap keeps is what the next step needs. Between blocks there are gaps: one is asked
for with room to align it, and seldom fits where one as large was freed. So a rank holds
up to twice what its tensors do. Threads share one heap, so that what a process group's
own have freed is there for all.

Source: the GNU C library's manual, "Malloc Tunable Parameters": no block by ``mmap``,
no trimming of the heap, one arena. GPUs have an allocator of PyTorch's own that keeps
its blocks.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MOST_BY_MMAP, _MOST_ARENAS = -1, -4, -8


def keep_freed_memory() -> bool:
    """Keep what this process frees, from now on; return whether the heap can."""
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is None:
        return False  # another C library
    wanted = (_MOST_BY_MMAP, 0), (_TRIM_THRESHOLD, -1), (_MOST_ARENAS, 1)
    return all([bool(tune(what, value)) for what, value in wanted])
