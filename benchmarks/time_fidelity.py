"""The seconds that a plan predicts for a step, and those that the step takes.

    python benchmarks/time_fidelity.py --rounds 3 --steps 5

Models and strategies as in memory_fidelity.py. Plans take turns on local gloo ranks: a
round measures the machine (``partita calibrate``), unless a profile is given, then runs
each plan for some steps. What a plan predicts is priced on the round's machine, since
shared ones are now faster, now slower; medians of the rounds count, and of the ratios
within them. The last line says of how many pairs of plans the faster one was foretold,
among those that differ by more than a tenth.
"""

from __future__ import annotations

import argparse
from itertools import combinations
from statistics import median
from typing import Any

import torch
from language_models import Case, add_arguments, planned
from this_machine import this_machine
from turns import Group, Step, Turns

import partita as pt
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.simulate.plan import simulate_step
from partita.compiler.simulate.reprice import reprice

_WARM_UP = 2
_DIFFERS = 0.1


def make_step(case: dict[str, Any], document: dict[str, Any]) -> Step:
    """Return this rank's step of a plan, the optimizer's included."""
    model, batch = Case(**case).build()
    program = pt.compile(model, pt.Plan.from_dict(document), device="cpu")
    optimizer = torch.optim.AdamW(program.parameters(), lr=1e-3)

    def step() -> torch.Tensor:
        loss = program.step(**batch)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def main() -> None:
    """Print, per model and strategy, what was predicted and measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--hardware", help="a profile; unless given, this machine's")
    options = parser.parse_args()
    found = options.hardware and load_hardware(options.hardware)
    plans = list(planned(options, found or this_machine(options.ranks)))
    with Turns(len(plans)) as turns:
        groups: dict[str, Group] = {}
        for item in plans:
            args = item.case, item.plan.to_dict()
            started = turns.start(item.name, options.ranks, make_step, *args)
            turns.take(started, _WARM_UP)
            groups[item.name] = started
        rounds: list[dict[str, tuple[float, float]]] = []
        for _ in range(options.rounds):
            machine = found or this_machine(options.ranks)
            rounds.append(
                {
                    item.name: (
                        simulate_step(reprice(item.plan, machine).plan).seconds,
                        turns.take(groups[item.name], options.steps).seconds,
                    )
                    for item in plans
                }
            )
    predicted, measured = (
        {item.name: median(each[item.name][at] for each in rounds) for item in plans}
        for at in (0, 1)
    )
    for name, seconds in predicted.items():
        ratio = median(each[name][0] / each[name][1] for each in rounds)
        print(
            f"{name:<24}  predicted {seconds:7.3f} s  measured {measured[name]:7.3f} s"
            f"  {ratio - 1:+.1%}"
        )
    print(_ranking(predicted, measured))


def _ranking(predicted: dict[str, float], measured: dict[str, float]) -> str:
    right = total = 0
    for one, other in combinations(measured, 2):
        a, b = measured[one], measured[other]
        if max(a, b) > (1 + _DIFFERS) * min(a, b):
            total += 1
            right += (predicted[one] < predicted[other]) == (a < b)
    return f"ranking right in {right} of {total} pairs"


if __name__ == "__main__":
    main()
