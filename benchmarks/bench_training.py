"""Steps of training, Partita's beside those of torch's own ways, on local ranks.

    python benchmarks/bench_training.py --models gpt2-4k,tiny --rounds 7

Each way has processes of its own. They take turns, some steps each a round, in an order
that changes, so that whatever else the machine does slows all of them alike; who has no
turn waits idle. Printed are medians of the slowest rank's seconds, the median of the
ratio to the eager model in one process of the same round, the bytes of a step on the
loopback device, the most memory that a rank's process held, and the seconds of the
first step. Losses are checked equal.
"""

from __future__ import annotations

import argparse
import random
from statistics import fmean, median
from typing import Any

from language_models import STRATEGIES
from this_machine import this_machine
from training_models import MODELS, build
from training_peers import PEERS, make_step
from turns import Group, Turn, Turns

import partita as pt

_WARM_UP = 2
_AGREES = 1e-4  # of the loss, after all steps
_BASE = "eager"


def plan_of(
    name: str, peer: str, ranks: int, hardware: str | pt.Hardware
) -> dict[str, Any]:
    """Return the plan that a peer runs, as a document; nothing for those of torch."""
    asked = PEERS[peer]
    if not asked.is_ours:
        return {}
    model, batch = build(name)
    pins = {} if asked.pins is None else STRATEGIES[asked.pins].pins(model)
    if asked.pins is not None:
        names = [each for each in pins if each not in ("input_ids", "labels")]
        pins = {each: pins[each] for each in names} | dict.fromkeys(batch, "S(0)")
    options = pt.Options(
        pins=pins, hardware=hardware, optimizer="fused-adamw", fuse=True
    )
    named: dict[str, Any] = {**batch}
    return pt.plan(model, mesh=pt.Mesh(dp=ranks), options=options, **named).to_dict()


Measured = list[tuple[Group, list[Turn]]]
"""Each way's processes with their turns, a turn a round."""


def measure(
    name: str, plans: dict[str, dict[str, Any]], asked: argparse.Namespace
) -> Measured:
    """Return all peers, after as many rounds as asked for."""
    with Turns(len(plans)) as turns:
        every: Measured = []
        for peer, plan in plans.items():
            num = 1 if PEERS[peer].alone else asked.ranks
            every.append((turns.start(peer, num, make_step, peer, name, plan), []))
        order = list(every)
        shuffle = random.Random(0).shuffle  # who comes after whom matters, so all do
        for number in range(-_WARM_UP, asked.rounds):
            shuffle(order)
            for group, taken in order:
                turn = turns.take(group, asked.steps)
                if number >= 0:
                    taken.append(turn)
    return every


def table(name: str, every: Measured) -> str:
    """Return a line per peer."""
    heads = "ms", "ratio", "MB sent", "peak MB", "first s", "loss"
    rows = [f"{name:32}" + "".join(f"{head:>9}" for head in heads)]
    base, base_turns = next(each for each in every if each[0].name == _BASE)
    wanted = base.ended.result()[0].loss
    for group, turns in every:
        ended = group.ended.result()
        pairs = zip(turns, base_turns, strict=True)
        ratio = median(own.seconds / other.seconds for own, other in pairs)
        loss = fmean(rank.loss for rank in ended)
        wrong = "" if abs(loss - wanted) <= _AGREES * abs(wanted) else "  WRONG LOSS"
        rows.append(
            f"{group.name:32}{median(t.seconds for t in turns) * 1e3:9.2f}{ratio:9.3f}"
            f"{median(t.sent_bytes for t in turns) / 1e6:9.1f}"
            f"{max(rank.peak_bytes for rank in ended) / 1e6:9.0f}"
            f"{max(rank.first_s for rank in ended):9.1f}{loss:9.5f}{wrong}"
        )
    return "\n".join(rows)


def main() -> None:
    """Print a table per model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--hardware", help="a profile; unless given, this machine's")
    asked = parser.parse_args()
    hardware = asked.hardware or this_machine(asked.ranks, "dp")
    for name in asked.models.split(","):
        peers = asked.peers.split(",")
        plans = {p: plan_of(name, p, asked.ranks, hardware) for p in peers}
        print(table(name, measure(name, plans, asked)), flush=True)


if __name__ == "__main__":
    main()
