"""``partita check``: whether a plan keeps to limits, for scripts and CI.

What counts is what its decisions take, not the figures that stand beside them.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from partita.carried.edited import load_edited
from partita.cli.command import (
    FAILED,
    OK,
    Command,
    add_json,
    add_plan,
    print_json,
    tell,
    write_output,
)
from partita.cli.rules import add_rules, load_rules
from partita.compiler.errors import BadOptions
from partita.compiler.plan.check_rules import check_rules
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.store import format_json
from partita.compiler.plan.table import format_table
from partita.compiler.plan.units import (
    format_bytes,
    format_seconds,
    parse_bytes,
    parse_seconds,
    printable,
)
from partita.compiler.rules.rule import RuleSet
from partita.whole_plans.recount import recount, whole_figures


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
    add_rules(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="counted.json",
        help="save the plan with what its decisions take, say after they were edited; "
        "with the boxings that edited placements want",
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print every figure with its limit; fail unless all keep to theirs.

    Without limits the plan is checked by itself, and its figures printed.
    """
    limits = list(_limits(options))
    rules = load_rules(options.rules)
    paths = [options.plan, *([] if options.against is None else [options.against])]
    loaded = [Plan.load(path) for path in paths[1:]]
    loaded.insert(0, _loaded(options.plan, options.output is not None))
    plan, *others = (
        _counted(path, one, rules) for path, one in zip(paths, loaded, strict=True)
    )
    limits += [
        (name, value, f"of {options.against}")
        for other in others
        for name, value in whole_figures(other).items()
    ]
    if options.output is not None:
        write_output(options.output, format_json(plan.to_dict()) + "\n")
        tell(f"saved {options.output}")
    found = whole_figures(plan)
    checks = [Check(name, found[name], limit, why) for name, limit, why in limits]
    is_ok = all(check.ok for check in checks)
    if options.json:
        rows = [{**asdict(check), "ok": check.ok} for check in checks]
        print_json({"ok": is_ok, "found": found, "checks": rows})
    elif checks:
        print(_table(checks))
    elif options.output is None:
        rows = [(name, _text(name, value)) for name, value in found.items()]
        print(format_table(("", "found, no limit given"), rows))
    return OK if is_ok else FAILED


def _loaded(path: str, is_kept: bool) -> Plan:
    """Return a plan; one that is saved again with the boxings that it wants."""
    if not is_kept:
        return Plan.load(path)
    plan, mended = load_edited(path)
    if mended.added or mended.dropped:
        tell(f"partita: {path}: its placements want others: {printable(str(mended))}")
    return plan


def _counted(path: str, plan: Plan, rules: RuleSet) -> Plan:
    """Return a plan with what its decisions take; tell where it states otherwise."""
    check_rules(plan, rules, path)
    counted = recount(plan, rules)
    if counted.is_edited:
        stated, found = whole_figures(plan), whole_figures(counted.plan)
        changes = [
            f"{name} {_text(name, stated[name])} -> {_text(name, found[name])}"
            for name in found
            if stated[name] != found[name]
        ]
        tell(
            f"partita: {path}: counted anew, its figures are others: "
            f"{', '.join(changes)}"
        )
    if counted.estimated:
        keys = ", ".join(map(printable, counted.estimated[:2]))
        more = ", ..." if counted.estimated[2:] else ""
        tell(
            f"partita: {path}: no rule here prices {len(counted.estimated)} calls, "
            f"which count as it states: {keys}{more}"
        )
    return counted.plan


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
            _text(check.name, check.found),
            f"at most {_text(check.name, check.limit)}",
            check.limit_of,
            "ok" if check.ok else "FAILED",
        )
        for check in checks
    ]
    return format_table(("", "found", "wanted", "", ""), rows)


def _text(name: str, value: float) -> str:
    return format_seconds(value) if name == "step" else format_bytes(round(value))


COMMAND = Command(
    name="check",
    summary="fail when a plan needs more than it may, for scripts and CI",
    example="partita check gpt2.plan.json --max-memory 24GiB --against old.plan.json",
    add_arguments=add_arguments,
    run=run,
)
