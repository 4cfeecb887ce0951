"""What a real kernel holds, beside what the table of workspaces says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from partita.compiler.cost.local_call import LocalCall
from partita.compiler.cost.workspace import workspace_bytes
from partita.compiler.ir.tensor_type import TensorType
from partita.runtime.measure_memory import measure_memory

CPU = torch.device("cpu")


def type_in_kernel(x: Tensor) -> TensorType:
    """Return the type of a real tensor."""
    return TensorType(tuple(x.shape), x.dtype)


def measured_and_predicted(
    op: str, call: Callable[[], Any], operands: Sequence[Tensor], *constants: str
) -> tuple[int, int]:
    """Return what a kernel holds beyond its results, and what the table says."""
    made: list[Any] = [call()]
    made.clear()
    memory = measure_memory(lambda: made.append(call()), (), CPU)
    results = made[0] if isinstance(made[0], tuple) else (made[0],)
    results = [x for x in results if x is not None]
    own = sum(x.untyped_storage().nbytes() for x in results)
    seen = [(type_in_kernel(x), x.stride()) for x in operands]
    types = [type_in_kernel(x) for x in results]
    found = workspace_bytes(LocalCall(op, seen, types, "cpu", constants))
    return memory.peak_bytes - own, found
