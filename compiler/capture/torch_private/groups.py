"""Groups of ranks by their names, and what passed in them."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch._C import _distributed_c10d


def flight_records() -> list[dict[str, Any]]:
    """Return what the backends' flight recorder holds: one record per collective."""
    dump = vars(_distributed_c10d)["_dump_fr_trace_json"]  # not in the stubs
    return json.loads(dump()).get("entries", [])


def ranks_of_group(name: str) -> tuple[int, ...]:
    """Return the global ranks of the process group of a name; none where it is free."""
    try:
        group = vars(_distributed_c10d)["_resolve_process_group"](name)
    except RuntimeError:
        return ()
    return tuple(torch.distributed.get_process_group_ranks(group))


def name_group(name: str, group: torch.distributed.ProcessGroup) -> None:
    """Let functional collectives find a process group by another name too."""
    vars(_distributed_c10d)["_register_process_group"](name, group)
