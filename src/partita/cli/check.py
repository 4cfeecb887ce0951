"""``partita check``: whether a plan keeps to limits, for scripts and CI."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from partita.cli.command import FAILED, OK, Command, add_json, add_plan, print_json
from partita.compiler.errors import BadOptions
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.sent import sent_bytes
from partita.compiler.plan.table import format_table
from partita.compiler.plan.units import (
    format_bytes,
    format_seconds,
    parse_bytes,
    parse_seconds,
)


@dataclass(frozen=True, slots=True)
class Check:
    """One figure of a plan, in bytes or seconds, and what it may be at most."""

    name: str
    found: float
    limit: float
    limit_of: str

    @property
    def ok(self) -> bool:
        """Whether the plan keeps to the limit."""
        return self.found <= self.limit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Ask for the plan and the limits."""
    add_plan(parser)
    parser.add_argument("--max-memory", help="of a rank at its peak, e.g. 24GiB")
    parser.add_argument(
        "--max-comm", help="what a rank puts on the wire in a step, e.g. 2GiB"
    )
    parser.add_argument("--max-seconds", help="of a step, e.g. 0.5 or 500ms")
    parser.add_argument(
        "--against",
        metavar="old.json",
        help="a plan that this one is to be no worse than, in all three",
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print every figure with its limit; fail unless all keep to theirs."""
    limits = list(_limits(options))
    plan = Plan.load(options.plan)
    if options.against is not None:
        limits += [
            (name, value, f"of {options.against}")
            for name, value in _figures(Plan.load(options.against)).items()
        ]
    if not limits:
        raise BadOptions(
            "give what the plan is to keep to: --max-memory, --max-comm, --max-seconds "
            "or --against"
        )
    found = _figures(plan)
    checks = [Check(name, found[name], limit, why) for name, limit, why in limits]
    is_ok = all(check.ok for check in checks)
    if options.json:
        rows = [{**asdict(check), "ok": check.ok} for check in checks]
        print_json({"ok": is_ok, "checks": rows})
    else:
        print(_table(checks))
    return OK if is_ok else FAILED


def _figures(plan: Plan) -> dict[str, float]:
    return {
        "memory": plan.predicted.bytes,
        "communication": sent_bytes(plan),
        "step": plan.predicted.seconds,
    }


def _limits(options: argparse.Namespace) -> Iterator[tuple[str, float, str]]:
    readers: tuple[tuple[str, str, Callable[[str], float]], ...] = (
        ("memory", "--max-memory", _read_bytes),
        ("communication", "--max-comm", _read_bytes),
        ("step", "--max-seconds", _read_seconds),
    )
    for name, option, read in readers:
        text = getattr(options, option.removeprefix("--").replace("-", "_"))
        if text is not None:
            try:
                yield name, read(text), option
            except BadOptions as error:
                raise BadOptions(f"{option} {text}: {error}") from None


def _read_bytes(text: str) -> float:
    return 0 if text.strip() == "0" else parse_bytes(text)


def _read_seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return parse_seconds(text)
    if not math.isfinite(number) or number < 0:
        raise BadOptions("want a number of seconds from 0 on")
    return number


def _table(checks: list[Check]) -> str:
    rows = [
        (
            check.name,
            _text(check, check.found),
            f"at most {_text(check, check.limit)}",
            check.limit_of,
            "ok" if check.ok else "FAILED",
        )
        for check in checks
    ]
    return format_table(("", "found", "wanted", "", ""), rows)


def _text(check: Check, value: float) -> str:
    return format_seconds(value) if check.name == "step" else format_bytes(round(value))


COMMAND = Command(
    name="check",
    summary="fail when a plan needs more than it may, for scripts and CI",
    example="partita check gpt2.plan.json --max-memory 24GiB --against old.plan.json",
    add_arguments=add_arguments,
    run=run,
)
