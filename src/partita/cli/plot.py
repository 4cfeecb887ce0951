"""``partita plot``: a figure of a plan, for papers."""

from __future__ import annotations

import argparse

from partita.cli.command import OK, Command, add_plan, tell
from partita.compiler.errors import BadOptions
from partita.compiler.plan.plan import Plan
from partita.plots.plot import Plot, plot
from partita.plots.scaling import BATCH


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Ask for the plan, what to draw and the file."""
    add_plan(parser)
    parser.add_argument(
        "--what", metavar="PLOT", required=True, help=f"one of {', '.join(Plot)}"
    )
    parser.add_argument(
        "--along", metavar="AXIS", help="of scaling: an axis of the mesh (the batch)"
    )
    parser.add_argument(
        "--sizes",
        metavar="N,N,...",
        help="of scaling: batches, or ranks along the axis (powers of two)",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        required=True,
        help="the figure, by its name .png, .svg or .pdf",
    )


def run(options: argparse.Namespace) -> int:
    """Draw the figure."""
    for name in ("along", "sizes"):
        if getattr(options, name) is not None and options.what != Plot.SCALING:
            raise BadOptions(f"--{name} is of --what scaling alone")
    plan = Plan.load(options.plan)
    plot(
        plan,
        options.what,
        options.output,
        along=options.along or BATCH,
        sizes=None if options.sizes is None else _read_sizes(options.sizes),
    )
    tell(f"saved {options.output}")
    return OK


def _read_sizes(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and len(word) < 10 for word in words):
        raise BadOptions(f"--sizes {text}: want whole numbers, e.g. 8,16,32")
    return [int(word) for word in words]


COMMAND = Command(
    name="plot",
    summary="draw memory, the timeline or scaling curves of a plan, for papers",
    example="partita plot gpt2.plan.json --what memory -o memory.pdf",
    add_arguments=add_arguments,
    run=run,
)
