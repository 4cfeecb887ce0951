"""Which vector instructions a machine's compiler and processor take, tried out once.

Inductor has code with them built and loaded in a process of its own, which brings
PyTorch: a second or two of every rank that writes or finds C++ code, one after the
other. What worked is noted beside Inductor's code, under all that it depends on.
"""

from __future__ import annotations

import hashlib
import platform
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from partita.compiler.capture.torch_private import (
    VectorTrial,
    around_vector_trials,
    cpp_compiler,
)


def noted_trials(folder: Path) -> AbstractContextManager[object]:
    """Return a block in which Inductor tries nothing that a note says has worked.

    What has failed is tried again: the machine may have been too busy.

    Args:
        folder: where the notes are.
    """

    def around(try_out: VectorTrial) -> VectorTrial:
        def tried(kind: Any, code: str) -> bool:
            note = folder / f"vectors-{_digest(kind.build_arch_flags(), code)}"
            if note.exists():
                return True
            if not try_out(kind, code):
                return False
            folder.mkdir(parents=True, exist_ok=True)
            note.touch()
            return True

        return tried

    return around_vector_trials(around)


def _digest(flags: str, code: str) -> str:
    """Return a hash of what a trial shows, and where and by what it is made."""
    kind = torch.backends.cpu.get_cpu_capability()
    machine = platform.node(), platform.machine(), kind
    stated = f"{flags}{code}{machine}{cpp_compiler()}{torch.__version__}"
    return hashlib.sha256(stated.encode()).hexdigest()
