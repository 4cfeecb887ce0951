"""``partita export``: a plan in the words of other tools."""

from __future__ import annotations

import argparse
import sys

from partita.cli.command import OK, Command, add_plan, tell, write_output
from partita.compiler.errors import BadOptions
from partita.compiler.plan.plan import Plan
from partita.exporters import EXPORTERS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Ask for the plan, the format and the file."""
    add_plan(parser)
    formats = "\n".join(f"  {e.name:<15} {e.summary}" for e in EXPORTERS)
    parser.add_argument(
        "--to",
        metavar="FORMAT",
        required=True,
        help=f"one of {', '.join(exporter.name for exporter in EXPORTERS)}",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="standard output")
    parser.description = f"{parser.description}\n\nformats:\n{formats}"


def run(options: argparse.Namespace) -> int:
    """Write the plan."""
    exporter = next((e for e in EXPORTERS if e.name == options.to), None)
    if exporter is None:
        known = ", ".join(e.name for e in EXPORTERS)
        raise BadOptions(
            f"--to {options.to}: there is no such format; want one of {known}"
        )
    text = exporter.write(Plan.load(options.plan))
    if options.output is None:
        sys.stdout.write(text)
    else:
        write_output(options.output, text)
        tell(f"saved {options.output}")
    return OK


COMMAND = Command(
    name="export",
    summary="write a plan in the words of other tools",
    example="partita export gpt2.plan.json --to dot -o gpt2.dot",
    add_arguments=add_arguments,
    run=run,
)
