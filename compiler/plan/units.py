"""Figures and names as people read them, safe for a terminal, and back."""

from __future__ import annotations

import re
from math import ceil

from partita.compiler.errors import BadOptions

_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_BYTES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_THOUSANDS = ((10**3, "KB"), (10**6, "MB"), (10**9, "GB"), (10**12, "TB"))
_MOST_BYTES = 1 << 60
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?B|B)?\s*", re.ASCII)
_TIME = re.compile(r"\s*(\d+(?:\.\d+)?(?:e-?\d+)?)\s*(s|ms|us)\s*", re.ASCII)
_LONGEST_SHOWN = 60


def format_seconds(seconds: float) -> str:
    """Return a time in the unit that suits it.

    >>> [format_seconds(s) for s in (2.5, 0.0123, 4.2e-5, 0, -3e-3)]
    ['2.5 s', '12.3 ms', '42 us', '0 s', '-3 ms']
    """
    if seconds == 0:
        return "0 s"
    for size, unit in _SECONDS:
        if abs(seconds) >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def format_bytes(count: int) -> str:
    """Return a size in the unit that suits it.

    >>> [format_bytes(n) for n in (0, 512, 1536, 3 << 20)]
    ['0 B', '512 B', '1.5 KiB', '3 MiB']
    """
    for size, unit in _BYTES:
        if abs(count) >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"


def format_room(count: int) -> str:
    """Return a size that ``parse_bytes`` reads as no less.

    >>> format_room(41_864), parse_bytes(format_room(41_864))
    ('40.89 KiB', 41871)
    """
    for size, unit in _BYTES:
        if count >= size:
            return f"{ceil(100 * count / size) / 100:g} {unit}"
    return f"{count} B"


def parse_bytes(size: str | float, of: str = "memory") -> int:
    """Read a size: ``24GiB``, ``80GB`` (in thousands) or a whole number of bytes.

    >>> parse_bytes("1.5 KiB"), parse_bytes("2 KB"), parse_bytes(1e2), parse_bytes("7")
    (1536, 2000, 100, 7)

    Raises:
        BadOptions: when it is no size; ``of`` says what it is the size of.
    """
    num_bytes = _num_bytes(size)
    if num_bytes is None or num_bytes < 1:
        wanted = "e.g. '24GiB' or a whole number of bytes"
    elif num_bytes > _MOST_BYTES:
        wanted = "at most 2**60 bytes"
    else:
        return int(num_bytes)
    raise BadOptions(f"{of} is {shown(size)}; want {wanted}")


def _num_bytes(size: object) -> float | None:
    if isinstance(size, str):
        match = _SIZE.fullmatch(size)
        if match is None:
            return None
        units = {name: unit for unit, name in (*_BYTES, *_THOUSANDS, (1, "B"))}
        return float(match[1]) * units[match[2] or "B"]
    if isinstance(size, bool) or not isinstance(size, int | float):
        return None
    is_whole = isinstance(size, int) or size.is_integer()
    return size if is_whole else None


def shown(value: object) -> str:
    """Return a value as messages show it.

    >>> shown("24 apples"), shown(1.5), shown(10**5000)
    ("'24 apples'", '1.5', 'a number of too many digits')
    """
    try:
        text = repr(value)
    except ValueError:  # more digits than Python writes
        text = "a number of too many digits"
    return shortened(text)


def shortened(text: str) -> str:
    """Return text as far as a message has room for it."""
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."


def parse_seconds(text: str) -> float:
    """Read a time: ``1ms``, ``20 us``, ``0.5s``.

    >>> parse_seconds("2ms"), parse_seconds(" 1e-06s")
    (0.002, 1e-06)

    Raises:
        BadOptions: when the text is no time.
    """
    match = _TIME.fullmatch(text)
    if match is None or float(match[1]) <= 0:
        raise BadOptions(f"{text.strip()!r} is no time; want e.g. '1ms', in s, ms, us")
    sizes = {unit: size for size, unit in _SECONDS}
    return float(match[1]) * sizes[match[2]]


def pattern(name: str) -> str:
    """Return ``name`` with the numbers of a module list replaced by a star.

    >>> pattern("h.11.mlp.c_fc/mm/0"), pattern("0.weight"), pattern("h.1/mm/2")
    ('h.*.mlp.c_fc/mm/0', '*.weight', 'h.*/mm/2')
    """
    return re.sub(r"(?<![^.])\d+(?=[./]|$)", "*", name)


def printable(text: str) -> str:
    r"""Return ``text`` with what a terminal could obey written as escapes.

    >>> printable("h.0" + chr(27) + "[2J")
    'h.0\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode()
        for c in text
    )
