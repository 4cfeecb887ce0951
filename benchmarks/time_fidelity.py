"""The seconds that a plan predicts for a step, and those that the step takes.

    python benchmarks/time_fidelity.py --rounds 3 --steps 5

Models and strategies as in memory_fidelity.py. The machine is measured first
(``partita calibrate``), unless a profile is given. Plans take turns: a round runs each
for some steps on local gloo ranks; medians count. The last line says of how many pairs
of plans the faster one was foretold, among those that differ by more than a tenth.
"""

from __future__ import annotations

import argparse
import time
from itertools import combinations
from statistics import median
from typing import Any

import torch
from language_models import Case, Planned, add_arguments, planned

import partita as pt
from partita.cli.calibrate import measure_rank
from partita.compiler.hardware.fit import fit_hardware
from partita.runtime.launch import launch

_WARM_UP = 2
_DIFFERS = 0.1


def measure(case: dict[str, Any], document: dict[str, Any], steps: int) -> list[float]:
    """Return the seconds of this rank's steps, the optimizer's among them."""
    model, batch = Case(**case).build()
    program = pt.compile(model, pt.Plan.from_dict(document), device="cpu")
    optimizer = torch.optim.AdamW(program.parameters(), lr=1e-3)
    seconds: list[float] = []
    for _ in range(_WARM_UP + steps):
        torch.distributed.barrier()
        started = time.perf_counter()
        program.step(**batch)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - started)
    return seconds[_WARM_UP:]


def main() -> None:
    """Print, per model and strategy, what was predicted and measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--hardware", help="a profile; unless given, this machine's")
    options = parser.parse_args()
    hardware = options.hardware or _this_machine(options.ranks)
    plans = list(planned(options, hardware))
    measured: dict[str, list[float]] = {item.name: [] for item in plans}
    for _ in range(options.rounds):
        for item in plans:
            args = item.case, item.plan.to_dict(), options.steps
            ranks = launch(measure, options.ranks, args)
            measured[item.name] += map(max, *ranks)
    medians = {name: median(seconds) for name, seconds in measured.items()}
    for item in plans:
        predicted, found = item.plan.predicted.seconds, medians[item.name]
        print(
            f"{item.name:<24}  predicted {predicted:7.3f} s  measured {found:7.3f} s  "
            f"{predicted / found - 1:+.1%}"
        )
    print(_ranking(plans, medians))


def _this_machine(ranks: int) -> pt.Hardware:
    mesh = pt.Mesh(tp=ranks)
    measured = launch(measure_rank, ranks, (str(mesh), False))[0]
    return fit_hardware(measured, mesh, "measured")


def _ranking(plans: list[Planned], medians: dict[str, float]) -> str:
    right = total = 0
    for one, other in combinations(plans, 2):
        a, b = medians[one.name], medians[other.name]
        if max(a, b) > (1 + _DIFFERS) * min(a, b):
            total += 1
            foretold = one.plan.predicted.seconds < other.plan.predicted.seconds
            right += foretold == (a < b)
    return f"ranking right in {right} of {total} pairs"


if __name__ == "__main__":
    main()
