"""Products whose rows are not aligned: as they are, with gaps, some columns at a time.

    python benchmarks/unaligned_products.py --products 512x256x50257,2048x256x25001

A product is ROWSxWIDTHxCOLUMNS. One thread makes it in all ways by turns in one run.
Printed are medians of milliseconds, and of the ratios in the same round to the product
as it is. Whatever is written is there already, so that no page is touched first.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch

from partita.runtime.heap import keep_freed_memory
from partita.runtime.unaligned_products import mm_by_columns, with_gaps

Way = Callable[[], object]
PRODUCTS = "512x256x50257,512x256x30522,2048x256x25001,512x64x4001,512x256x50264"


def ways(rows: int, width: int, columns: int, dtype: torch.dtype) -> dict[str, Way]:
    """Return what is timed."""
    x = torch.randn(rows, width, dtype=dtype)
    y = torch.randn(columns, width, dtype=dtype).t()
    plain, gapped = x.new_zeros(rows, columns), with_gaps(x, columns).zero_()
    return {
        "as it is": lambda: torch.mm(x, y, out=plain),
        "with gaps": lambda: torch.mm(x, y, out=gapped),
        "by columns": lambda: mm_by_columns(x, y),
    }


def timed(every: dict[str, Way], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each way in each round."""
    taken: dict[str, list[float]] = {name: [] for name in every}
    for number in range(-1, rounds):
        for name, run in every.items():
            begun = time.perf_counter()
            run()
            if number >= 0:
                taken[name].append(time.perf_counter() - begun)
    return taken


def main() -> None:
    """Print a line per product."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--products", default=PRODUCTS)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=15)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    dtype: torch.dtype = getattr(torch, asked.dtype)
    names = "as it is", "with gaps", "by columns"
    print(f"{'ms':20}" + "".join(f"{name:>12}" for name in (*names, *names[1:])))
    for product in asked.products.split(","):
        rows, width, columns = map(int, product.split("x"))
        taken = timed(ways(rows, width, columns, dtype), asked.rounds)
        ms = [f"{median(taken[name]) * 1e3:12.2f}" for name in names]
        pairs = [zip(taken[name], taken[names[0]], strict=True) for name in names[1:]]
        ratios = [f"{median(own / base for own, base in each):12.3f}" for each in pairs]
        print(f"{product:20}" + "".join(ms + ratios), flush=True)


if __name__ == "__main__":
    main()
