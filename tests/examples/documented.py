"""Documents against what really happens: code blocks, and the output they promise.

Promised output is compared word by word, except that figures that vary (times, bytes,
anything with a decimal point) count as equal, and that ``...`` stands for any text.
"""

from __future__ import annotations

import doctest
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

_FIGURE = re.compile(
    r"[+-]?\d[\d.]*(e[+-]?\d+)?%?\s(ns|us|ms|s|B|KiB|MiB|GiB)\b"
    r"|[+-]?\d+(\.\d+)+(e[+-]?\d+)?%?"
    r"|[+-]?\d+e[+-]?\d+"
)
_RULE = re.compile(r"-{2,}")  # below a table's head, as wide as its column
_PARTS = re.compile(r"\([^()\n]* #[^()\n]*\)")  # of a sum, the largest first
_ERRORS = re.compile(r"(^  #  [\w.]+\n)+", re.MULTILINE)  # the largest first
_LINES = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Block(NamedTuple):
    """One fenced block of a page: its language and its text, with where it stands."""

    language: str
    text: str
    section: str
    line: int


def blocks(path: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a Markdown page, in order."""
    section, language, start = "", None, 0
    body: list[str] = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
        if language is not None and line.strip() == "```":
            yield Block(language, "\n".join(body) + "\n", section, start)
            language = None
        elif language is not None:
            body.append(line)
        elif line.startswith("```"):
            language, start, body = line[3:].strip(), number, []
        elif line.startswith("#"):
            section = line.lstrip("#").strip()
    assert language is None, f"{path}: the block of line {start} has no end"


def expected_output(docstring: str) -> str:
    """Return what a module's docstring promises to print: all after its command."""
    _, _, output = docstring.partition("\n$ ")[2].partition("\n")
    return output


def assert_prints(promised: str, printed: str) -> None:
    """Check that what was printed is what was promised."""
    want, got = _plain(promised), _plain(printed)
    checker = doctest.OutputChecker()
    if not checker.check_output(want, got, _LINES):
        example = doctest.Example("", want)
        raise AssertionError(
            checker.output_difference(example, got, doctest.REPORT_NDIFF)
        )


def _plain(text: str) -> str:
    """Return ``text`` without figures, and in an order that does not depend on them."""
    plain = _RULE.sub("--", _FIGURE.sub("#", text)).strip() + "\n"
    plain = _PARTS.sub(lambda found: _in_order(found[0][1:-1], ", "), plain)
    return _ERRORS.sub(lambda found: _in_order(found[0], "\n") + "\n", plain)


def _in_order(text: str, separator: str) -> str:
    return separator.join(sorted(text.strip("\n").split(separator)))


def run_script(path: Path) -> None:
    """Run a script in this process, as Python does when it is asked for the file."""
    runpy.run_path(str(path), run_name="__main__")


def run_ranks(words: Sequence[str], folder: Path) -> str:
    """Run ``torchrun`` with these words in a folder; return what it printed.

    Raises:
        AssertionError: with what it wrote, when it fails.
    """
    ran = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
