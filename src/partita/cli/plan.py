"""``partita plan``: search the placements of a model."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from typing import Any

from partita.cli.command import (
    OK,
    Command,
    add_json,
    add_target,
    print_json,
    tell,
    write_output,
)
from partita.cli.figures import plan_figures
from partita.cli.loss import add_loss, load_loss
from partita.cli.progress import shown
from partita.cli.rules import add_rules, load_rules, unused_rules
from partita.cli.target import load_target
from partita.compiler.capture.mixed_precision import PRECISIONS
from partita.compiler.errors import BadOptions
from partita.compiler.ir.mesh import Mesh
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.store import format_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Ask for the model, the mesh and what bounds the search."""
    add_target(parser)
    parser.add_argument(
        "--mesh",
        help="axes and sizes, slowest links first; pp carries stages: pp=2,dp=2",
    )
    parser.add_argument(
        "--devices",
        type=int,
        help="ranks, in place of --mesh: mesh and stages are searched",
    )
    parser.add_argument("--hardware", help="a profile's name or file (cpu-gloo)")
    parser.add_argument("--memory", help="what one rank may use, e.g. 24GiB (no limit)")
    parser.add_argument(
        "--microbatches", help="parts of a batch, one after another: a number or auto"
    )
    parser.add_argument(
        "--schedule",
        help="of stages: gpipe, 1f1b, interleaved, zero-bubble, frugal (the fastest)",
    )
    parser.add_argument(
        "--stages-per-rank", help="more than 1 for interleaved stages (the fastest)"
    )
    parser.add_argument("--optimizer", help="adamw, sgd, ...: for its memory (adamw)")
    parser.add_argument(
        "--precision",
        choices=tuple(PRECISIONS),
        help="mixed precision, as under torch.autocast (as the model is)",
    )
    parser.add_argument(
        "--narrow-sums",
        action="store_true",
        help="add gradients up in the 16 bits they are made in (their parameter's)",
    )
    parser.add_argument("--inference", action="store_true", help="only the forward")
    parser.add_argument(
        "--pin",
        action="append",
        default=[],
        metavar="NAME=PLACEMENT",
        help='fix placements, e.g. "w=(S(0), B)", "layers.*.mlp.*=on tp ~ 1ms"; repeat',
    )
    parser.add_argument(
        "--bucket",
        help="bytes of gradients that one collective carries (25MiB); 0: one for each",
    )
    parser.add_argument(
        "--recompute",
        action="append",
        metavar="NAME",
        help="make again for the backward instead of keeping it: what modules make "
        'inside, "transformer.h.*", or, with a slash, ops, "*.mlp.act/*"; repeat',
    )
    parser.add_argument(
        "--fuse",
        action="store_true",
        help="make one kernel of small ops, one product of several, where it pays",
    )
    add_loss(parser)
    add_rules(parser)
    parser.add_argument(
        "--time-limit",
        type=float,
        help="seconds the search may take, for all meshes that are tried together",
    )
    parser.add_argument(
        "--like",
        metavar="old.json",
        help="keep the decisions of a plan of this model before it was edited, or for "
        "another mesh, where they fit; what is not given is as there, --mesh too",
    )
    parser.add_argument("-o", "--output", metavar="plan.json", help="save the plan")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Plan, save, print."""
    like = None if options.like is None else Plan.load(options.like)
    where = _read_mesh(options)
    pins = dict(_read_pin(text) for text in options.pin)
    example = load_target(options.target)
    rules = load_rules(options.rules)

    import partita as pt
    from partita.carried.like import options_of, plan_like

    choices: dict[str, Any] = {
        "hardware": options.hardware,
        "memory": options.memory,
        "optimizer": options.optimizer,
        "precision": options.precision,
        "time_limit": options.time_limit,
        "schedule": options.schedule,
        "stages_per_rank": _read_count(options.stages_per_rank),
        "microbatches": _read_count(options.microbatches),
        "bucket": _read_count(options.bucket),
        "recompute": options.recompute,
        "loss": load_loss(options.loss),
    }
    given = {name: value for name, value in choices.items() if value is not None}
    if options.inference:
        given["train"] = False
    if options.narrow_sums:
        given["wide_sums"] = False
    if options.fuse:
        given["fuse"] = True
    model, args, kwargs = example
    with shown():
        if like is None:
            asked = pt.Options(pins=pins, rules=rules, **given)
            plan = pt.plan(model, *args, **where, options=asked, **kwargs)
        else:
            mesh = where.get("mesh", like.mesh)
            kept_options = options_of(like, mesh)
            asked = replace(kept_options, pins=pins, rules=rules, **given)
            plan, kept = plan_like(
                model, *args, like=like, mesh=mesh, options=asked, **kwargs
            )
            tell(f"like {options.like}: {kept}")
    for unused in unused_rules(plan, rules):
        tell(f"partita: --rules {options.rules}: {unused}")
    if options.output is not None:
        write_output(options.output, format_json(plan.to_dict()) + "\n")
        tell(f"saved {options.output}")
    if options.json:
        print_json(plan_figures(plan))
    else:
        print(plan)
    return OK


def _read_count(text: str | None) -> int | str | None:
    if text is None or re.fullmatch("[0-9]{1,18}", text) is None:
        return text
    return int(text)


def _read_mesh(options: argparse.Namespace) -> dict[str, Any]:
    """Return ``mesh`` or ``devices``, whichever was given."""
    if options.like is not None:
        if options.devices is not None:
            raise BadOptions(
                "--devices: a plan like another has its mesh, or --mesh; want no "
                "devices"
            )
        return {} if options.mesh is None else {"mesh": Mesh.parse(options.mesh)}
    if (options.mesh is None) == (options.devices is None):
        raise BadOptions(
            "give --mesh, axes and sizes, e.g. --mesh dp=2,tp=2, or --devices, a "
            "number of ranks, to have the mesh searched"
        )
    if options.mesh is not None:
        return {"mesh": Mesh.parse(options.mesh)}
    return {"devices": options.devices}


def _read_pin(text: str) -> tuple[str, str]:
    name, equals, placement = text.partition("=")
    if not equals or not name or not placement:
        raise BadOptions(
            f"--pin {text!r}: want NAME=PLACEMENT, e.g. --pin 'h.0.weight=(S(0), B)'"
        )
    return name.strip(), placement.strip()


COMMAND = Command(
    name="plan",
    summary="search where every tensor of a model lives and how it is split",
    example="partita plan train.py:build --mesh dp=2,tp=2 -o gpt2.plan.json",
    add_arguments=add_arguments,
    run=run,
)
