"""The directive ``commands``: every command of ``partita``, as its help tells it."""

from __future__ import annotations

import io
import os
from contextlib import redirect_stdout
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from partita.cli.main import COMMANDS, main

COLUMNS = "88"
"""The width that help is written for, whatever the terminal's is."""


class CommandsDirective(SphinxDirective):
    """A section for each command: its name and its help."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        os.environ["COLUMNS"] = COLUMNS  # argparse asks for it
        found: list[nodes.Node] = []
        for command in COMMANDS:
            section = nodes.section(ids=[f"partita-{command.name}"])
            section += nodes.title(text=f"partita {command.name}")
            text = _help(command.name)
            section += nodes.literal_block(text, text, language="text")
            found.append(section)
        return found


def _help(name: str) -> str:
    """Return what ``partita NAME --help`` prints."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        main([name, "--help"])
    return printed.getvalue().rstrip()


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the directive."""
    app.add_directive("commands", CommandsDirective)
    return {"parallel_read_safe": True}
