"""``partita view``: a plan as one self-contained page."""

from __future__ import annotations

import argparse
from pathlib import Path

from partita.cli.command import OK, Command, add_plan, tell, write_output
from partita.compiler.plan.plan import Plan
from partita.page.page import render_page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Ask for the plan and the page's file."""
    add_plan(parser)
    parser.add_argument(
        "-o", "--output", metavar="plan.html", help="the page (the plan's name, .html)"
    )


def run(options: argparse.Namespace) -> int:
    """Write the page."""
    plan = Plan.load(options.plan)
    path = options.output or Path(options.plan).with_suffix(".html")
    write_output(path, render_page(plan))
    tell(f"saved {path}")
    return OK


COMMAND = Command(
    name="view",
    summary="write a page of the graph, timeline and memory; it needs no network",
    example="partita view gpt2.plan.json -o gpt2.html",
    add_arguments=add_arguments,
    run=run,
)
