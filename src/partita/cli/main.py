"""The command line: ``partita COMMAND ...``.

A command is one row of ``COMMANDS``; its words and its work are in its own file.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from partita.cli import (
    bundle,
    calibrate,
    check,
    diff,
    explain,
    export,
    plan,
    plot,
    run,
    show,
    simulate,
    verify,
    view,
)
from partita.cli.command import BAD_INPUT, FAILED, OK, Parser, tell
from partita.compiler.errors import PartitaError, RankFailed
from partita.compiler.plan.units import printable

COMMANDS = (
    plan.COMMAND,
    show.COMMAND,
    explain.COMMAND,
    view.COMMAND,
    verify.COMMAND,
    run.COMMAND,
    simulate.COMMAND,
    plot.COMMAND,
    export.COMMAND,
    diff.COMMAND,
    check.COMMAND,
    bundle.COMMAND,
    calibrate.COMMAND,
)

_INTERRUPTED = 130  # 128 + SIGINT, as shells count


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = Parser(
        prog="partita",
        description="Compile a PyTorch model into a parallel program.",
        epilog="partita COMMAND --help explains a command and shows an example.",
    )
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", dest="command", required=True
    )
    for command in COMMANDS:
        below = commands.add_parser(
            command.name,
            help=command.summary,
            description=f"{command.summary[0].upper()}{command.summary[1:]}.",
            epilog=f"example:\n  {command.example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(below)
        below.set_defaults(run=command.run, parser=below)
    return parser


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    """Return what a command is asked, whose options may stand anywhere behind it."""
    options, unknown = build_parser().parse_known_args(words)
    parser: argparse.ArgumentParser = options.parser
    command, *further = words
    if unknown and command == options.command:
        # Perhaps words: all that it must have may stand before an option.
        options, unknown = parser.parse_known_intermixed_args(further)
    if unknown:  # told by the command, whose help is what helps
        parser.error(f"unrecognized arguments: {printable(' '.join(unknown))}")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return 0, 1 when its check failed, 2 for bad input."""
    try:
        options = _parsed(sys.argv[1:] if argv is None else argv)
        code: int = options.run(options)
        sys.stdout.flush()  # here, where a reader that has gone away is caught
        return code
    except SystemExit as leaving:  # argparse, after --help or an error
        return leaving.code if isinstance(leaving.code, int) else OK
    except RankFailed as error:
        if isinstance(error.__cause__, PartitaError):  # bad input that ranks met
            tell(f"partita: {printable(str(error.__cause__))}")
            return BAD_INPUT
        tell(f"partita: {error}")  # with the rank's own traceback
        return FAILED
    except PartitaError as error:
        tell(f"partita: {printable(str(error))}")
        return BAD_INPUT
    except BrokenPipeError:  # the reader, e.g. head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except KeyboardInterrupt:
        return _INTERRUPTED
