"""The pages of docs/: their programs and commands run, and print what is promised.

errors.md and CONTRIBUTING.md, which extending.md shows, have tests of their own.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.compiler.plan.small_plan import small_plan
from tests.examples.documented import ROOT, Block, assert_prints, blocks, run_ranks

from partita.cli.main import main

DOCS = ROOT / "docs"
OWN_TESTS = {"errors.md"}
PAGES = sorted(path.name for path in DOCS.glob("*.md") if path.name not in OWN_TESTS)
LONGEST = "tutorial.md"
"""It searches a mesh of three axes."""

SAVED = ("plan.json", "a.plan.json", "b.plan.json")
"""Plans that pages speak of without having made them."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in a folder from which programs import the files that pages ask to save."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if (tmp_path / f"{name}.py").exists():
            del sys.modules[name]


def run_page(page: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Run a page from top to bottom; return the commands that start ranks."""
    known: dict[str, Any] = {}
    left: list[str] = []
    found = list(blocks(DOCS / page))
    below: list[Block | None] = [*found[1:], None]
    for block, promised in zip(found, below, strict=True):
        capsys.readouterr()
        if block.language == "console":
            left += [line for line in block.text.splitlines() if not command(line)]
        elif block.language == "python" and block.text.startswith("# "):
            (folder / block.text.split()[1]).write_text(block.text, "utf-8")
        elif block.language == "python":
            exec(compile(block.text, f"{page}:{block.line}", "exec"), known)
            if promised is not None and promised.language == "text":
                assert_prints(promised.text, capsys.readouterr().out)
    return left


def command(line: str) -> bool:
    """Run a line of the command line, unless it starts ranks; tell whether it ran."""
    program, *words = shlex.split(line)
    if program == "torchrun":
        return False
    assert program == "partita", line
    assert main(words) == 0, line
    return True


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow) if page == LONGEST else page
        for page in PAGES
    ],
)
def test_page_does_what_it_says(
    page: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in SAVED:
        small_plan().save(folder / name)
    left = run_page(page, folder, capsys)
    assert len(left) == (page == "tutorial.md")


@pytest.mark.slow
@pytest.mark.dist
def test_the_tutorial_trains_on_real_ranks(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = run_page("tutorial.md", folder, capsys)
    printed = run_ranks(shlex.split(line)[1:], folder)
    losses = [float(text.split()[1]) for text in printed.splitlines()]
    assert len(losses) == 5
    assert losses[-1] < losses[0] < 7
