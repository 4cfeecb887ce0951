"""``partita simulate``: a plan's step as it is predicted, on any machine."""

from __future__ import annotations

import argparse
import json
from typing import Any

from partita.cli.command import (
    OK,
    Command,
    add_json,
    add_plan,
    print_json,
    tell,
    write_output,
)
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.table import format_table
from partita.compiler.plan.units import format_bytes, format_seconds, printable
from partita.compiler.simulate.reprice import Repriced, reprice
from partita.compiler.simulate.row_figures import row_figures
from partita.compiler.simulate.timetable import Timetable, make_timetable
from partita.compiler.simulate.trace import write_trace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Ask for the plan, the machine and the trace's file."""
    add_plan(parser)
    parser.add_argument(
        "--trace",
        metavar="trace.json",
        help="save the timeline; ui.perfetto.dev and chrome://tracing open it",
    )
    parser.add_argument(
        "--hardware", help="a profile's name or file (that of the plan)"
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Simulate, save the trace, print the figures."""
    plan = Plan.load(options.plan)
    priced = Repriced(plan, ())
    if options.hardware is not None:
        priced = reprice(plan, load_hardware(options.hardware))
    timetable = make_timetable(priced.plan)
    if options.trace is not None:
        text = json.dumps(write_trace(priced.plan, timetable), separators=(",", ":"))
        write_output(options.trace, text + "\n", "--trace")
        tell(f"saved {options.trace}")
    figures = _figures(plan, priced, timetable)
    if options.json:
        print_json(figures)
    else:
        print(_tables(figures))
    return OK


def _figures(
    plan: Plan, priced: Repriced[Plan], timetable: Timetable
) -> dict[str, Any]:
    step = timetable.step
    return {
        "model": plan.model.class_name,
        "mesh": str(plan.mesh),
        "hardware": priced.plan.hardware["name"],
        "seconds": step.seconds,
        "bubble": step.bubble,
        "plan": {
            "hardware": plan.hardware["name"],
            "seconds": plan.predicted.seconds,
            "bytes": plan.predicted.bytes,
        },
        "rows": row_figures(plan, timetable),
        "links": [
            {
                "row": link.row,
                "track": link.track,
                "times": link.times,
                "seconds": link.seconds,
                "bytes": round(link.bytes),
            }
            for link in timetable.links
        ],
        "estimated": list(priced.estimated),
    }


def _tables(figures: dict[str, Any]) -> str:
    own, seconds = figures["plan"], figures["seconds"]
    lines = [
        f"{figures['model']} on mesh {figures['mesh']}, hardware {figures['hardware']}",
        f"step    {format_seconds(seconds)}; the plan predicts "
        f"{format_seconds(own['seconds'])} on {own['hardware']}",
        f"bubble  {figures['bubble']:.1%} of the ranks' time waits for other stages",
    ]
    estimated = figures["estimated"]
    if estimated:
        lines.append(
            f"rough   {len(estimated)} calls are scaled, the plan tells too little of "
            f"them: {estimated[0]}{', ...' if len(estimated) > 1 else ''}"
        )
    rows = [
        (
            f"{min(row['ranks'])}-{max(row['ranks'])}",
            ", ".join(map(str, row["stages"])),
            *(
                format_seconds(row[name])
                for name in ("compute_s", "communication_s", "waiting_s")
            ),
            format_bytes(row["peak_bytes"]),
            format_seconds(row["peak_at_s"]),
        )
        for row in figures["rows"]
    ]
    head = ("ranks", "stages", "computes", "communicates", "waits", "memory", "at")
    parts = ["\n".join(map(printable, lines)), format_table(head, rows)]
    links = [
        (
            str(link["row"]),
            link["track"],
            str(link["times"]),
            format_bytes(link["bytes"]),
            format_seconds(link["seconds"]),
            f"{link['seconds'] / seconds:.1%}",
        )
        for link in figures["links"]
    ]
    if links:
        head = ("row", "sends along", "times", "bytes", "time", "of the step")
        parts.append(format_table(head, links))
    return "\n\n".join(parts)


COMMAND = Command(
    name="simulate",
    summary="predict a step's timeline, time and memory, on this or other hardware",
    example="partita simulate gpt2.plan.json --trace gpt2.trace.json",
    add_arguments=add_arguments,
    run=run,
)
