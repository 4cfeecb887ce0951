"""What a call of a compiled region takes, beside an op and ``torch.compile``.

    python benchmarks/region_calls.py --runs 5

A region of as many additions as it has operands but one, and a GELU, of a few numbers:
what it computes takes next to nothing. By turns in one process: an eager op, the region
as programs call it, and through ``torch.compile``. Printed are medians in microseconds,
and the region's ratio to the op: the search reckons with ``CALL_LAUNCHES`` of them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import fx

from partita.compiler.search.group_seconds import CALL_LAUNCHES
from partita.runtime.compiled_region import CompiledRegion

_ADD, _GELU = torch.ops.aten.add.Tensor, torch.ops.aten.gelu.default
_CALLS = 5000


def region(num_operands: int) -> fx.GraphModule:
    """Return a region that adds its operands up and takes the GELU of the sum."""
    graph = fx.Graph()
    total, *others = (graph.placeholder(f"input_{i}") for i in range(num_operands))
    for other in others:
        total = graph.call_function(_ADD, (total, other))
    graph.output((total, graph.call_function(_GELU, (total,))))
    return fx.GraphModule(torch.nn.Module(), graph)


def call_us(call: Callable[..., object], given: list[torch.Tensor]) -> float:
    """Return the microseconds of a call."""
    started = time.perf_counter()
    for _ in range(_CALLS):
        call(*given)
    return (time.perf_counter() - started) / _CALLS * 1e6


def main() -> None:
    """Print a line for each number of operands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operands", default="2,4,8")
    parser.add_argument("--runs", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    heads = "op", "region", "dynamo", "ratio"
    print("operands  " + "".join(f"{head:>9}" for head in heads))
    with torch.no_grad():
        for num in map(int, asked.operands.split(",")):
            given = [torch.randn(16, 32) for _ in range(num)]
            through_dynamo = torch.compile(region(num), fullgraph=True, dynamic=False)
            compiled = CompiledRegion(region(num))
            ways: list[tuple[Callable[..., object], list[torch.Tensor]]] = [
                (_ADD, given[:2]),
                (compiled, given),
                (through_dynamo, given),
            ]
            for way, operands in ways:
                way(*operands)  # compiles
            runs = [[call_us(*way) for way in ways] for _ in range(asked.runs)]
            op, own, dynamo = (median(figures) for figures in zip(*runs, strict=True))
            print(f"{num:8}  {op:9.2f}{own:9.2f}{dynamo:9.2f}{own / op:9.2f}")
    print(f"reckoned with: {CALL_LAUNCHES}")


if __name__ == "__main__":
    main()
