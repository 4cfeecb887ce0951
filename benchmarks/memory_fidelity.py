"""The memory that a plan predicts for a rank, and the allocator's own count.

    python benchmarks/memory_fidelity.py --layers 6 --hidden 512 --batch 8

GPT-2 and Llama from transformers, random weights, AdamW, each trained by data and by
tensor parallelism, with the optimizer's state in pieces, its gradients too and the
activations of a layer made again, and with the parameters in pieces, on local gloo
ranks. What is measured is a step and the optimizer's: all allocations and releases of a
rank.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
from language_models import Case, add_arguments, planned

import partita as pt
from partita.runtime.launch import launch
from partita.runtime.measure_memory import MeasuredMemory, measure_step


def measure(case: dict[str, Any], document: dict[str, Any]) -> MeasuredMemory:
    """Return this rank's memory over a step of the model and of AdamW."""
    model, batch = Case(**case).build()
    program = pt.compile(model, pt.Plan.from_dict(document), device="cpu")
    optimizer = torch.optim.AdamW(program.parameters(), lr=1e-3)
    return measure_step(program, optimizer, **batch)


def main() -> None:
    """Print, per model and strategy, what was predicted and measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    options = parser.parse_args()
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # of the ranks: no lines of torch's
    for item in planned(options, "cpu-gloo"):
        found = launch(measure, options.ranks, (item.case, item.plan.to_dict()))
        measured = max(memory.peak_bytes for memory in found)
        predicted = item.plan.predicted.bytes
        print(
            f"{item.name:<24}  predicted {predicted / 2**20:8.2f} MiB  "
            f"measured {measured / 2**20:8.2f} MiB  {predicted / measured - 1:+.2%}"
        )


if __name__ == "__main__":
    main()
