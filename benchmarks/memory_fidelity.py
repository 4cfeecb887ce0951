"""The memory that a plan predicts for a rank, and the allocator's own count.

    python benchmarks/memory_fidelity.py --layers 6 --hidden 512 --batch 8
    python benchmarks/memory_fidelity.py --device cuda --ranks 2

GPT-2 and Llama from transformers, random weights, AdamW, each trained by data and by
tensor parallelism, with the optimizer's state in pieces, its gradients too and the
activations of a layer made again, and with the parameters in pieces, on local gloo
ranks. What is measured is a step and the optimizer's: all allocations and releases of a
rank. On a GPU one rank runs: its process group sends nothing, so that what it computes
is wrong, and what it holds is right but for what NCCL itself would.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
import torch.distributed as dist
from language_models import Case, Planned, add_arguments, planned
from torch.testing._internal.distributed.fake_pg import FakeStore

import partita as pt
from partita.runtime.launch import launch
from partita.runtime.measure_memory import MeasuredMemory, measure_step

_HARDWARE = {"cpu": "cpu-gloo", "cuda": "h100-dgx"}


def measure(
    case: dict[str, Any], document: dict[str, Any], device: str
) -> MeasuredMemory:
    """Return this rank's memory over a step of the model and of AdamW."""
    model, batch = Case(**case).build()
    program = pt.compile(model, pt.Plan.from_dict(document), device=device)
    optimizer = torch.optim.AdamW(program.parameters(), lr=1e-3)
    return measure_step(program, optimizer, **batch)


def measured(item: Planned, ranks: int, device: str) -> int:
    """Return the most bytes that a rank held."""
    given = item.case, item.plan.to_dict(), device
    if device == "cpu":
        found = launch(measure, ranks, given)
        return max(memory.peak_bytes for memory in found)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        return measure(*given).peak_bytes
    finally:
        dist.destroy_process_group()


def main() -> None:
    """Print, per model and strategy, what was predicted and measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--device", default="cpu", choices=tuple(_HARDWARE))
    options = parser.parse_args()
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # of the ranks: no lines of torch's
    for item in planned(options, _HARDWARE[options.device]):
        found = measured(item, options.ranks, options.device)
        predicted = item.plan.predicted.bytes
        print(
            f"{item.name:<24}  predicted {predicted / 2**20:8.2f} MiB  "
            f"measured {found / 2**20:8.2f} MiB  {predicted / found - 1:+.2%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
