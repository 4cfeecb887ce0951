"""``partita bundle``: a plan and its graph, to be replayed where the model is not."""

from __future__ import annotations

import argparse

from partita.cli.command import (
    OK,
    Command,
    add_json,
    add_plan,
    add_target,
    print_json,
    tell,
    write_output,
)
from partita.cli.loss import add_loss, load_plan
from partita.cli.rules import add_rules, load_rules
from partita.cli.target import load_target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Ask for the model, the plan, the seed and the file."""
    add_target(parser)
    add_plan(parser)
    parser.add_argument(
        "-o", "--output", metavar="bundle.zip", required=True, help="the bundle"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the values it is replayed on (0)"
    )
    add_loss(parser)
    add_rules(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Write the bundle; say what replaying it found here."""
    from partita.verifying.bundle import Bundle

    plan = load_plan(options.plan, options.loss)
    example, rules = load_target(options.target), load_rules(options.rules)
    bundle = Bundle.of(*example, plan, options.seed, rules=rules)
    write_output(options.output, bundle.save())
    tell(f"saved {options.output}; partita verify {options.output} replays it")
    if options.json:
        print_json(bundle.about)
    else:
        print(f"replayed here: {'ok' if bundle.about['replayed']['ok'] else 'FAILED'}")
    return OK


COMMAND = Command(
    name="bundle",
    summary="pack a plan and its graph into a report that replays without the model",
    example="partita bundle train.py:build gpt2.plan.json -o gpt2.bundle.zip",
    add_arguments=add_arguments,
    run=run,
)
