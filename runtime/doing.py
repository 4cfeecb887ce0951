"""What a rank is doing, left where its launcher finds it if the rank is killed."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "PARTITA_DOING"
"""The environment variable that names the file; there is none without a launcher."""

_LENGTH = 128


@contextmanager
def telling() -> Generator[Callable[[str], None]]:
    """Give a function that says what is being done, for as long as this lasts."""
    name = os.environ.get(VARIABLE)
    if name is None:
        yield lambda _: None
        return
    file = os.open(name, os.O_WRONLY | os.O_CREAT)
    try:
        yield lambda what: _write(file, what)
        _write(file, "")
    finally:
        os.close(file)


def _write(file: int, what: str) -> None:
    os.pwrite(file, what.encode()[:_LENGTH].ljust(_LENGTH, b"\0"), 0)


def last_told(path: Path) -> str:
    """Return what a rank said last; nothing where it was done with all it said.

    >>> last_told(Path("no such file"))
    ''
    """
    if not path.exists():
        return ""
    return path.read_bytes().rstrip(b"\0").decode(errors="replace")
