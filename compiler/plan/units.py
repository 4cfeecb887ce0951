"""Figures and names as people read them, safe for a terminal, and back."""

from __future__ import annotations

import re
from math import ceil

from partita.compiler.errors import BadOptions

_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_BYTES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


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


def parse_bytes(text: str | int, of: str = "memory") -> int:
    """Read a size: ``24GiB``, ``80GB`` (in thousands) or a number of bytes.

    >>> parse_bytes("1.5 KiB"), parse_bytes("2 KB"), parse_bytes(100), parse_bytes("7")
    (1536, 2000, 100, 7)

    Raises:
        BadOptions: when the text is no size; ``of`` says what it is the size of.
    """
    if isinstance(text, int):
        number, unit = float(text), "B"
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?B|B)?\s*", text)
        number, unit = (float(match[1]), match[2] or "B") if match else (0.0, "")
    sizes = {name: size for size, name in _BYTES} | {"B": 1}
    sizes |= {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
    if unit not in sizes or number <= 0:
        raise BadOptions(f"{of} {text!r} is no size; want e.g. '24GiB' or '512MiB'")
    return int(number * sizes[unit])


def parse_seconds(text: str) -> float:
    """Read a time: ``1ms``, ``20 us``, ``0.5s``.

    >>> parse_seconds("2ms"), parse_seconds(" 1e-06s")
    (0.002, 1e-06)

    Raises:
        BadOptions: when the text is no time.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:e-?\d+)?)\s*(s|ms|us)\s*", text)
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
