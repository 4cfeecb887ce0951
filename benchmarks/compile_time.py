"""Seconds until a first step is done, of programs compiled as a whole, by who waits.

    python benchmarks/compile_time.py --models gpt2-4k --rounds 3

A round starts, each with processes of its own: torch.compile of the plain model in one
process, twice with one cache on disk, and Partita's data parallel program on the ranks,
twice too, its own cache empty at first; in an order that changes. Seconds are of the
slowest rank, from the built model until the first step is done, so that Partita's have
its capture in them, and of torch's the backward's compilation. Printed are medians and,
in the last two columns, the medians over rounds of the ratios to the first start, and
to that of torch.compile.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from statistics import median
from typing import Any

import torch
from bench_training import plan_of
from training_models import MODELS
from training_peers import PEERS

from partita.runtime.launch import launch

_PLAIN, _OURS = "compiled", "partita data parallel compiled"
_CACHE = "TORCHINDUCTOR_CACHE_DIR"


def first_step(name: str, peer: str, plan: dict[str, Any]) -> float:
    """Return the seconds until this rank has made a step."""
    torch.set_num_threads(1)
    started = time.perf_counter()
    PEERS[peer].make(name, plan)()
    return time.perf_counter() - started


def start(name: str, peer: str, plan: dict[str, Any], ranks: int) -> float:
    """Return the seconds of the slowest rank."""
    return max(launch(first_step, ranks, (name, peer, plan)))


def measure(
    name: str, ranks: int, rounds: int, hardware: str
) -> dict[str, list[tuple[float, float]]]:
    """Return by peer the seconds of the first and the second start of every round."""
    plan = plan_of(name, _OURS, ranks, hardware)
    asked = {_PLAIN: (plan_of(name, _PLAIN, 1, hardware), 1), _OURS: (plan, ranks)}
    found: dict[str, list[tuple[float, float]]] = {peer: [] for peer in asked}
    order = list(asked)
    shuffle = random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)
        for peer in order:
            with tempfile.TemporaryDirectory(prefix="partita-") as cache:
                os.environ[_CACHE] = cache
                first, second = (start(name, peer, *asked[peer]) for _ in range(2))
            found[peer].append((first, second))
    return found


def table(name: str, found: dict[str, list[tuple[float, float]]]) -> str:
    """Return a line per peer."""
    rows = [f"{name:32}{'first s':>9}{'second s':>9}{'ratio':>8}{'to torch':>10}"]
    for peer, seconds in found.items():
        first, second = (median(each) for each in zip(*seconds, strict=True))
        again = median(b / a for a, b in seconds)
        both = zip(seconds, found[_PLAIN], strict=True)
        beside = median(ours[0] / plain[0] for ours, plain in both)
        rows.append(f"{peer:32}{first:9.1f}{second:9.1f}{again:8.2f}{beside:10.2f}")
    return "\n".join(rows)


def main() -> None:
    """Print a table per model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hardware", default="cpu-gloo")
    asked = parser.parse_args()
    for name in asked.models.split(","):
        found = measure(name, asked.ranks, asked.rounds, asked.hardware)
        print(table(name, found), flush=True)


if __name__ == "__main__":
    main()
