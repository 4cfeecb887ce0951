"""Steps of training, Partita's beside those of torch's own ways, on local ranks.

    python benchmarks/bench_training.py --models gpt2-4k,tiny --rounds 7

Each way has processes of its own. They take turns, some steps each a round, in an order
that changes, so that whatever else the machine does slows all of them alike; who has no
turn waits idle. Printed are medians of the slowest rank's seconds, the median of the
ratio to the eager model in one process of the same round, the bytes of a step on the
loopback device, the most memory that a rank's process held, and the seconds of the
first step. Losses are checked equal, but for the models that ranks train apart.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from language_models import STRATEGIES
from this_machine import this_machine
from torch import nn
from training_matrices import megatron
from training_models import MODELS, Batch, build
from training_peers import PEERS, make_step
from turns import Group, Turn, Turns

import partita as pt
from partita.compiler.errors import RankFailed

_WARM_UP = 2
_AGREES = 1e-4  # of the loss, after all steps
_LEARNT = 1e-2  # of the first loss: what is left below that is mostly rounding
_BASE = "eager"


def plan_of(
    name: str, peer: str, ranks: int, hardware: str | pt.Hardware
) -> dict[str, Any]:
    """Return the plan that a peer runs, as a document; nothing for those of torch."""
    asked = PEERS[peer].asked
    if asked is None:
        return {}
    model, batch = build(name)
    named: dict[str, Any] = {**batch}
    options = pt.Options(hardware=hardware, optimizer="fused-adamw", fuse=True)
    mesh = pt.Mesh(dp=ranks)
    if asked.strategy is not None:
        pins = pins_of(asked.strategy, model, batch)
        again = again_of(asked.strategy, model)
        options = replace(options, pins=pins, recompute=again)
    if asked.microbatches:
        count = asked.microbatches
        options = replace(options, microbatches=count, schedule="1f1b")
        mesh = pt.Mesh(pp=ranks, dp=1)
    return pt.plan(model, mesh=mesh, options=options, **named).to_dict()


def pins_of(strategy: str, model: nn.Module, batch: Batch) -> dict[str, str]:
    """Return the pins that a strategy is."""
    if strategy == "Megatron":
        return megatron(model) | dict.fromkeys(batch, "B")
    pins = STRATEGIES[strategy].pins(model)
    known = {name for name, _ in model.named_parameters()}
    own = {name: pin for name, pin in pins.items() if name in known}
    return own | dict.fromkeys(batch, "S(0)")


def again_of(strategy: str, model: nn.Module) -> tuple[str, ...]:
    """Return what a strategy makes again for the backward."""
    return STRATEGIES[strategy].again(model) if strategy in STRATEGIES else ()


@dataclass(frozen=True)
class Measured:
    """Each way's processes with a turn a round, and why others have none."""

    every: list[tuple[Group, list[Turn]]]
    failed: dict[str, str]


def measure(
    name: str, plans: dict[str, dict[str, Any]], asked: argparse.Namespace
) -> Measured:
    """Return all peers, after as many rounds as asked for."""
    with Turns(len(plans)) as turns:
        every: list[tuple[Group, list[Turn]]] = []
        failed: dict[str, str] = {}
        for peer, plan in plans.items():
            num = 1 if PEERS[peer].alone else asked.ranks
            try:
                group = turns.start(peer, num, make_step, peer, name, plan)
            except RankFailed as error:
                cause = error.__cause__ or error
                failed[peer] = f"{type(cause).__name__}: {str(cause).strip()}"
            else:
                every.append((group, []))
        order = list(every)
        shuffle = random.Random(0).shuffle  # who comes after whom matters, so all do
        for number in range(-_WARM_UP, asked.rounds):
            shuffle(order)
            for group, taken in order:
                turn = turns.take(group, asked.steps)
                if number >= 0:
                    taken.append(turn)
    return Measured(every, failed)


def table(name: str, measured: Measured) -> str:
    """Return a line per peer."""
    heads = "ms", "ratio", "MB sent", "peak MB", "first s", "loss"
    rows = [f"{name:32}" + "".join(f"{head:>9}" for head in heads)]
    every = measured.every
    base, base_turns = next(each for each in every if each[0].name == _BASE)
    alone = base.ended.result()[0]
    wanted = alone.loss
    room = _AGREES * max(abs(wanted), _LEARNT * abs(alone.first_loss))
    for group, turns in every:
        ended = group.ended.result()
        pairs = zip(turns, base_turns, strict=True)
        ratio = median(own.seconds / other.seconds for own, other in pairs)
        loss = fmean(rank.loss for rank in ended)
        is_fine = PEERS[group.name].many or abs(loss - wanted) <= room
        wrong = "" if is_fine else "  WRONG LOSS"
        rows.append(
            f"{group.name:32}{median(t.seconds for t in turns) * 1e3:9.2f}{ratio:9.3f}"
            f"{median(t.sent_bytes for t in turns) / 1e6:9.1f}"
            f"{max(rank.peak_bytes for rank in ended) / 1e6:9.0f}"
            f"{max(rank.first_s for rank in ended):9.1f}{loss:9.5f}{wrong}"
        )
    rows += [
        f"{peer:32} does not run: {why.splitlines()[0]}"
        for peer, why in measured.failed.items()
    ]
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
