"""``partita show``: a plan as tables."""

from __future__ import annotations

import argparse

from partita.cli.command import OK, Command, add_json, add_plan, print_json
from partita.cli.figures import plan_figures
from partita.cli.terminal import print_sections
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.table import sections


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Ask for the plan."""
    add_plan(parser)
    parser.add_argument("--all", action="store_true", help="list every boxing")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print the plan."""
    plan = Plan.load(options.plan)
    if options.json:
        print_json(plan_figures(plan))
    else:
        most = {"most_rows": len(plan.boxings)} if options.all else {}
        print_sections(sections(plan, **most))
    return OK


COMMAND = Command(
    name="show",
    summary="print a plan as tables: placements, collectives, memory, time",
    example="partita show gpt2.plan.json",
    add_arguments=add_arguments,
    run=run,
)
