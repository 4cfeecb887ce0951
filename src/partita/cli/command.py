"""What a command of the command line is: a name, its words, and what it does."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from partita.compiler.errors import BadOptions
from partita.compiler.plan.store import check_writable, write_bytes

OK, FAILED, BAD_INPUT = 0, 1, 2
"""Exit codes: done; the check failed; what the user handed over is wrong."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command: ``run`` gets what ``add_arguments`` asked for, gives an exit code.

    ``example`` is a whole line to type, shown by ``--help``.
    """

    name: str
    summary: str
    example: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line and exit with 2."""

    def error(self, message: str) -> NoReturn:
        """Print the message and where help is, and exit."""
        self.exit(BAD_INPUT, f"{self.prog}: {message}; see {self.prog} --help\n")


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Ask for the plan's file."""
    parser.add_argument("plan", metavar="plan.json", help="a saved plan")


def add_target(parser: argparse.ArgumentParser) -> None:
    """Ask for the function that makes the model."""
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="file.py:function or package.module:function; the function takes no "
        "arguments and returns (model, args, kwargs)",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Offer figures as JSON."""
    parser.add_argument("--json", action="store_true", help="print figures as JSON")


def print_json(figures: Any) -> None:
    """Print figures as JSON, keys sorted."""
    print(json.dumps(figures, indent=2, sort_keys=True))


def check_output(path: str | Path, option: str = "-o") -> None:
    """Check that a file can be written, before the work for it.

    Raises:
        BadOptions: when it cannot.
    """
    with _writing(path, option):
        check_writable(path)


def write_output(path: str | Path, made: str | bytes, option: str = "-o") -> None:
    """Write a file that the user asked for with ``option``.

    Raises:
        BadOptions: when it cannot be written.
    """
    with _writing(path, option):
        write_bytes(path, made.encode() if isinstance(made, str) else made)


@contextmanager
def _writing(path: str | Path, option: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise BadOptions(f"{option} {path}: cannot be written: {reason}") from None


def tell(text: str) -> None:
    """Print to standard error what is no result, such as the name of a new file."""
    print(text, file=sys.stderr)
