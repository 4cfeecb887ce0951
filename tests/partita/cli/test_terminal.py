"""Tables are drawn for a person; what is piped is plain text, to the last character."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest
from tests.partita.carried.test_like import old_plan

from partita.cli.main import main
from partita.cli.terminal import print_sections
from partita.compiler.plan.table import Table, print_tables


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """Return what is written from now on, as to a terminal."""
    found = Screen()
    monkeypatch.setattr(sys, "stdout", found)
    for name, value in {"COLUMNS": "200", "TERM": "xterm-256color"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    return found


def test_a_terminal_gets_tables_with_placements_in_colours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    old_plan().save(path)
    screen = terminal(monkeypatch)
    assert main(["show", str(path)]) == 0
    text = screen.getvalue()
    assert re.search(r"\x1b\[[0-9;]*mS\(0\)\x1b", text)
    bare = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert "\u2500\u2500" in bare
    plain = print_tables(old_plan())
    words = set(plain.split()) - {word for word in plain.split() if set(word) == {"-"}}
    assert words <= set(bare.split())


def test_a_pipe_gets_what_the_plan_prints(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    old_plan().save(path)
    assert main(["show", str(path)]) == 0
    assert capsys.readouterr().out == f"{print_tables(old_plan())}\n"


def test_names_that_look_like_markup_stay_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = terminal(monkeypatch)
    hostile = "[red]x[/red]", "\x1b[31mred"
    print_sections([Table(("name", "bytes"), [(hostile[0], "1"), (hostile[1], "2")])])
    text = screen.getvalue()
    assert "[red]x[/red]" in text
    assert "\x1b[31m" not in text
