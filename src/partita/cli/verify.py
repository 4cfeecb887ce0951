"""``partita verify``: the planned program against the original model, or its graph."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from partita.cli.command import (
    FAILED,
    OK,
    Command,
    add_json,
    print_json,
)
from partita.cli.loss import add_loss, load_plan
from partita.cli.rules import add_rules, load_rules
from partita.cli.target import load_target
from partita.compiler.errors import BadOptions

if TYPE_CHECKING:
    from partita.verifying.report import Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Ask for the model and the plan, or a bundle that holds both."""
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="the model, as for partita plan; or bundle.zip, what partita bundle "
        "saved, which is replayed without the model",
    )
    parser.add_argument("plan", metavar="plan.json", nargs="?", help="a saved plan")
    add_loss(parser)
    add_rules(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print the largest errors; fail unless all are small enough."""
    report = _replayed(options) if options.plan is None else _verified(options)
    if options.json:
        print_json(_figures(report))
    else:
        print(report)
    return OK if report.ok else FAILED


def _verified(options: argparse.Namespace) -> Report:
    plan = load_plan(options.plan, options.loss)
    model, args, kwargs = load_target(options.target)
    rules = load_rules(options.rules)

    import partita as pt

    return pt.verify(model, *args, plan=plan, rules=rules, **kwargs)


def _replayed(options: argparse.Namespace) -> Report:
    from partita.verifying.bundle import Bundle

    if not options.target.endswith(".zip"):
        raise BadOptions(
            f"TARGET {options.target}: want plan.json behind it, or a bundle.zip in "
            "its place"
        )
    if options.loss is not None:
        raise BadOptions(f"--loss {options.loss}: a bundle has its own; want none")
    return Bundle.load(options.target, load_rules(options.rules)).replay()


def _figures(report: Report) -> dict[str, object]:
    """Return the report as JSON values; an error that is no number is text."""

    def numbers(errors: Mapping[str, float]) -> dict[str, float | str]:
        return {name: _number(error) for name, error in errors.items()}

    return {
        "ok": report.ok,
        "max_error": _number(report.max_error),
        "errors": numbers(report.errors),
        "own_errors": numbers(report.own_errors),
        "tolerances": numbers(report.tolerances),
        "failure": report.failure,
    }


def _number(error: float) -> float | str:
    return error if math.isfinite(error) else str(error)


COMMAND = Command(
    name="verify",
    summary="run every rank in one process and compare with the original model",
    example="partita verify train.py:build gpt2.plan.json",
    add_arguments=add_arguments,
    run=run,
)
