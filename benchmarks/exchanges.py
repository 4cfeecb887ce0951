"""Gathers, scatters and sums on gloo: its own beside exchanges, on local ranks.

    python benchmarks/exchanges.py --ranks 2 --sizes 1MiB,16MiB --rounds 40

A rank's parts of ``--sizes`` bytes in all are brought together, summed up apart, and on
all ranks, by turns in one run, by the very calls that programs make. Printed are
medians of the slowest rank's seconds and of the ratios in the same round. Memory stays
with the ranks (runtime/heap.py), as it does while they train.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch

import partita as pt
from partita.compiler.ir.mesh import Mesh
from partita.compiler.plan.units import parse_bytes
from partita.runtime.groups import bind
from partita.runtime.heap import keep_freed_memory
from partita.runtime.launch import launch

c10d = torch.ops._c10d_functional

Way = Callable[[], torch.Tensor]


def ways(numel: int, size: int, group: str) -> dict[str, Way]:
    """Return what is timed, each of ``numel`` elements in all."""
    part, whole = torch.randn(numel // size), torch.randn(numel)

    def exchanged(x: torch.Tensor) -> torch.Tensor:
        sizes = [len(x) // size] * size
        return c10d.wait_tensor(c10d.all_to_all_single(x, sizes, sizes, group))

    return {
        "all_gather": lambda: c10d.wait_tensor(
            c10d.all_gather_into_tensor(part, size, group)
        ),
        "all_gather exchanged": lambda: exchanged(part.repeat(size)),
        "reduce_scatter": lambda: c10d.wait_tensor(
            c10d.reduce_scatter_tensor(whole, "sum", size, group)
        ),
        "reduce_scatter exchanged": lambda: exchanged(whole).view(size, -1).sum(0),
        "all_reduce": lambda: c10d.wait_tensor(c10d.all_reduce(whole, "sum", group)),
        "all_reduce exchanged": lambda: (
            exchanged(whole.repeat(size)).view(size, -1).sum(0)
        ),
    }


def timed(numel: int, size: int, rounds: int) -> dict[str, list[float]]:
    """Return this rank's seconds of each way, round by round."""
    torch.set_num_threads(1)
    keep_freed_memory()
    group = bind(Mesh(dp=size), "cpu").names["stage0/dp"]
    found: dict[str, list[float]] = {}
    for number in range(rounds + 3):
        for name, way in ways(numel, size, group).items():
            torch.distributed.barrier()
            started = time.perf_counter()
            way()
            if number >= 3:  # the first ones fill the heap
                found.setdefault(name, []).append(time.perf_counter() - started)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", default="64KiB,1MiB,16MiB")
    parser.add_argument("--rounds", type=int, default=40)
    asked = parser.parse_args()
    print(f"partita {pt.__version__}, {asked.ranks} ranks, {asked.rounds} rounds")
    print(f"{'bytes':>8}  {'':26}{'ms':>9}{'of own':>9}")
    for text in asked.sizes.split(","):
        numel = parse_bytes(text) // 4 // asked.ranks * asked.ranks
        by_rank = launch(timed, asked.ranks, (numel, asked.ranks, asked.rounds))
        slowest = {
            name: [max(turn) for turn in zip(*(r[name] for r in by_rank), strict=True)]
            for name in by_rank[0]
        }
        for name, found in slowest.items():
            own = slowest[name.removesuffix(" exchanged")]
            ratio = median(a / b for a, b in zip(found, own, strict=True))
            print(f"{text:>8}  {name:26}{1e3 * median(found):9.2f}{ratio:9.2f}")


if __name__ == "__main__":
    main()
