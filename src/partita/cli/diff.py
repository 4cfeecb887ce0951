"""``partita diff``: what differs between two plans, and the price of it."""

from __future__ import annotations

import argparse

from partita.cli.command import OK, Command, add_json, print_json
from partita.compiler.plan.difference_table import print_difference
from partita.compiler.plan.plan import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Ask for the two plans."""
    parser.add_argument("before", metavar="a.json", help="a saved plan")
    parser.add_argument("after", metavar="b.json", help="another one")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print what moved, by parameter, node and collective, and what it costs."""
    difference = Plan.load(options.before).diff(Plan.load(options.after))
    if options.json:
        print_json(difference.to_dict())
    else:
        print(print_difference(difference))
    return OK


COMMAND = Command(
    name="diff",
    summary="say what differs between two plans, and the price of it",
    example="partita diff old.plan.json new.plan.json",
    add_arguments=add_arguments,
    run=run,
)
