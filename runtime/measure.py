"""Count the collectives that really ran, at the process group.

Two independent witnesses, both beneath the functional collectives: torch's profiler
sees each call of a process group (``c10d::allreduce_`` and the like), which tells the
kind; the flight recorder inside the backend sees what was started there, in the same
order, with the group and the sizes of the inputs. They must agree in number.

A backend may carry a call out as another one: gloo runs a reduce-scatter as an
all-reduce of its whole input. ``Collective.ran_as`` says so.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch.autograd.profiler import profile

from partita.compiler.capture.torch_private import flight_records, ranks_of_group
from partita.compiler.hardware.profile import CollectiveKind

_KINDS = {
    "allreduce": CollectiveKind.ALL_REDUCE,
    "allgather": CollectiveKind.ALL_GATHER,
    "reduce_scatter": CollectiveKind.REDUCE_SCATTER,
    "alltoall": CollectiveKind.ALL_TO_ALL,
}


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of this rank.

    Attributes:
        kind: a ``CollectiveKind``, or the process group's own name for another call
            (``barrier``, ``broadcast``, ``send``).
        ranks: the ranks of the group, as the whole run numbers them.
        payload_bytes: the size of this rank's input.
        ran_as: what the backend made of it, e.g. ``gloo:all_reduce``.
    """

    kind: str
    ranks: tuple[int, ...]
    payload_bytes: int
    ran_as: str


@contextmanager
def count_collectives() -> Generator[list[Collective]]:
    """Fill the list, when the block ends, with the collectives it ran, in order.

    Raises:
        RuntimeError: when more ran than the flight recorder holds.
    """
    found: list[Collective] = []
    records = flight_records()
    first = records[-1]["record_id"] + 1 if records else 0
    # Not through Kineto, which writes to the terminal.
    calls = profile(use_kineto=False)
    with calls:
        yield found
    names = [event.name for event in calls.function_events or ()]
    kinds = [_kind(name) for name in names if name.startswith("c10d::")]
    records = [r for r in flight_records() if r["record_id"] >= first]
    if len(records) != len(kinds):
        raise RuntimeError(
            f"{len(kinds)} collectives were called and {len(records)} recorded; start "
            f"the ranks with TORCH_FR_BUFFER_SIZE={2 * len(kinds) + 2000} or larger"
        )
    found += [
        Collective(
            kind=kind,
            ranks=ranks_of_group(record["process_group"][0]),
            payload_bytes=_num_bytes(record),
            ran_as=record["profiling_name"],
        )
        for kind, record in zip(kinds, records, strict=True)
    ]


def _kind(name: str) -> str:
    """Return the kind of ``c10d::allgather_into_tensor_coalesced_`` and the like."""
    call = name.removeprefix("c10d::").strip("_")
    return next((str(k) for start, k in _KINDS.items() if call.startswith(start)), call)


def _num_bytes(record: dict[str, Any]) -> int:
    sizes = zip(record["input_sizes"], record["input_dtypes"], strict=True)
    return sum(prod(shape) * _dtype(name).itemsize for shape, name in sizes)


def _dtype(name: str) -> torch.dtype:
    """Return the dtype that C++ calls ``name``: ``Float``, ``Long``, ``BFloat16``."""
    return _DTYPES[name]


_DTYPES = {
    "Float": torch.float32,
    "Double": torch.float64,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Float8_e4m3fn": torch.float8_e4m3fn,
    "Float8_e5m2": torch.float8_e5m2,
    "ComplexFloat": torch.complex64,
    "ComplexDouble": torch.complex128,
    "Long": torch.int64,
    "Int": torch.int32,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
}
"""By the names of C++: c10/core/ScalarType.h."""
