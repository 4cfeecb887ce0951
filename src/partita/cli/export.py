"""``partita export``: a plan in the words of other tools."""

from __future__ import annotations

import argparse
import sys

from partita.cli.command import OK, Command, add_plan, tell, write_output
from partita.cli.loss import add_loss, load_plan
from partita.cli.rules import add_rules, load_rules
from partita.cli.target import load_target
from partita.compiler.errors import BadOptions
from partita.compiler.export.exporter import Exporter
from partita.compiler.plan.plan import Plan
from partita.export.exporter import ProgramExporter
from partita.exporters import EXPORTERS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Ask for the plan, the format and the file."""
    add_plan(parser)
    parser.add_argument(
        "target",
        metavar="TARGET",
        nargs="?",
        help="the model, as for partita plan, for "
        + ", ".join(e.name for e in EXPORTERS if isinstance(e, ProgramExporter)),
    )
    formats = "\n".join(f"  {e.name:<15} {e.summary}" for e in EXPORTERS)
    parser.add_argument(
        "--to",
        metavar="FORMAT",
        required=True,
        help=f"one of {', '.join(exporter.name for exporter in EXPORTERS)}",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="standard output")
    add_loss(parser)
    add_rules(parser)
    parser.description = f"{parser.description}\n\nformats:\n{formats}"


def run(options: argparse.Namespace) -> int:
    """Write the plan."""
    exporter = next((e for e in EXPORTERS if e.name == options.to), None)
    if exporter is None:
        known = ", ".join(e.name for e in EXPORTERS)
        raise BadOptions(
            f"--to {options.to}: there is no such format; want one of {known}"
        )
    made = _written(exporter, options)
    if options.output is None:
        sys.stdout.write(made.decode())
    else:
        write_output(options.output, made)
        tell(f"saved {options.output}")
    return OK


def _written(
    exporter: Exporter | ProgramExporter, options: argparse.Namespace
) -> bytes:
    """Return the file."""
    name = exporter.name
    if isinstance(exporter, Exporter):
        if options.target is not None:
            raise BadOptions(
                f"TARGET {options.target}: --to {name} is of the plan alone; want none"
            )
        for option in ("rules", "loss"):
            given = getattr(options, option)
            if given is not None:
                raise BadOptions(
                    f"--{option} {given}: --to {name} is of the plan alone; want none"
                )
        return exporter.write(Plan.load(options.plan)).encode()
    if options.target is None:
        raise BadOptions(
            f"--to {name} needs the model: want TARGET behind the plan, e.g. "
            f"partita export plan.json train.py:build --to {name}"
        )
    if options.output is None and not exporter.is_text:
        raise BadOptions(f"--to {name} is no text; want -o FILE{exporter.suffix}")
    plan = load_plan(options.plan, options.loss)
    model, rules = load_target(options.target).model, load_rules(options.rules)
    return exporter.write(model, plan, rules)


COMMAND = Command(
    name="export",
    summary="write a plan in the words of other tools",
    example="partita export gpt2.plan.json --to dot -o gpt2.dot",
    add_arguments=add_arguments,
    run=run,
)
