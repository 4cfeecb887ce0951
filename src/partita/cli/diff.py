"""``partita diff``: what differs between two plans, and the price of it."""

from __future__ import annotations

import argparse

from partita.cli.command import (
    OK,
    Command,
    add_json,
    print_json,
    tell,
    write_output,
)
from partita.compiler.plan.plan import Plan
from partita.page.page import render_diff_page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Ask for the two plans."""
    parser.add_argument("before", metavar="a.json", help="a saved plan")
    parser.add_argument("after", metavar="b.json", help="another one")
    parser.add_argument(
        "-o", "--output", metavar="diff.html", help="a page with both side by side"
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print what moved, by parameter, node and collective, and what it costs."""
    before, after = Plan.load(options.before), Plan.load(options.after)
    difference = before.diff(after)
    if options.output is not None:
        write_output(options.output, render_diff_page(before, after))
        tell(f"saved {options.output}")
    if options.json:
        print_json(difference.to_dict())
    else:
        print(difference)
    return OK


COMMAND = Command(
    name="diff",
    summary="say what differs between two plans, and the price of it",
    example="partita diff old.plan.json new.plan.json -o diff.html",
    add_arguments=add_arguments,
    run=run,
)
