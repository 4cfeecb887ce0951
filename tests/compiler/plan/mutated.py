"""Plan files changed at random, as a hand, a disk or an attacker changes them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, cast

from partita.compiler.plan.store import format_json

SENTINEL = "partita-was-run"
"""The file that a script in a name would make, if it were run."""

SCRIPTS = (
    "<script>alert(1)</script>",
    f"__import__('pathlib').Path('{SENTINEL}').touch()",
    f"$(touch {SENTINEL})",
    f'"; import os; os.system("touch {SENTINEL}"); "',
    "\x1b[2J\x1b]0;title\x07",
    "..\\..\\\x00\u202e%n%s",
    "#1#2#3",
    "__class__",
)
HUGE = (2**31, 10**18, 10**30, -(10**30), 1e308)
TEXTS = (
    "", "x", "(S(0),)", "(S(99), B)", "(P(sum), P(sum))", "S(0; 1*9999999)", "1F0 1B0",
    "f32[9999999999, 9999999999]", "dp=99999999", *SCRIPTS,
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 7, -0.0, [], {}, [[]], {"a": 1}, *HUGE, *TEXTS,
)  # fmt: skip

Path = list[str | int]


def mutated(data: dict[str, Any], seed: int) -> bytes:
    """Return the text of a plan with one to three changes, the same for a seed."""
    rng = random.Random(seed)
    data = json.loads(json.dumps(data))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice(_CHANGES)(rng, data)
    text = format_json(data) + "\n"
    return rng.choice(_SPELLINGS)(rng, text) if rng.random() < 0.3 else text.encode()


def _somewhere(rng: random.Random, data: Any) -> tuple[Any, str | int]:
    """Return a container in the document, and a key or an index of it."""
    at = data
    while True:
        keys: list[Any] = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = rng.choice(keys)
        below = at[key]
        if not isinstance(below, dict | list) or not below or rng.random() < 0.15:
            return at, key
        at = cast("dict[str, Any] | list[Any]", below)


def _replace(rng: random.Random, data: Any) -> None:
    at, key = _somewhere(rng, data)
    at[key] = rng.choice(VALUES)


def _remove(rng: random.Random, data: Any) -> None:
    at, key = _somewhere(rng, data)
    del at[key]


def _add(rng: random.Random, data: Any) -> None:
    at, _ = _somewhere(rng, data)
    if isinstance(at, dict):
        at[rng.choice(("unknown", "", *SCRIPTS))] = rng.choice(VALUES)
    else:
        at.append(rng.choice(VALUES))


def _rename(rng: random.Random, data: Any) -> None:
    at, key = _somewhere(rng, data)
    if isinstance(at, dict):
        at[rng.choice(SCRIPTS)] = at.pop(key)
    else:
        at.insert(0, at.pop(key))


def _nest(rng: random.Random, data: Any) -> None:
    at, key = _somewhere(rng, data)
    value = at[key]
    for _ in range(rng.choice((2, 50, 300))):
        value = [value] if rng.random() < 0.5 else {"x": value}
    at[key] = value


def _move(rng: random.Random, data: Any) -> None:
    """Put what stands at one place to another place of the same kind."""
    at, key = _somewhere(rng, data)
    for _ in range(20):
        other, place = _somewhere(rng, data)
        if type(other[place]) is type(at[key]) and isinstance(at[key], str | int):
            at[key] = other[place]
            return


_CHANGES: tuple[Callable[[random.Random, Any], None], ...] = (
    _replace, _replace, _replace, _remove, _add, _rename, _nest, _move, _move,
)  # fmt: skip


def _truncated(rng: random.Random, text: str) -> bytes:
    return text.encode()[: rng.randrange(len(text))]


def _flipped(rng: random.Random, text: str) -> bytes:
    raw = bytearray(text.encode())
    for _ in range(rng.choice((1, 3, 20))):
        raw[rng.randrange(len(raw))] = rng.randrange(256)
    return bytes(raw)


def _huge(rng: random.Random, text: str) -> bytes:
    number = rng.choice(("1e999", "-1e999", "9" * 400, "9" * 5000, "NaN", "1e-400"))
    digits = [i for i, c in enumerate(text) if c.isdigit() and text[i - 1] == " "]
    at = rng.choice(digits)
    end = at + len(text[at:]) - len(text[at:].lstrip("0123456789.eE+-"))
    return (text[:at] + number + text[end:]).encode()


def _deep(rng: random.Random, text: str) -> bytes:
    depth = rng.choice((1000, 100_000))
    at = text.index(": ", rng.randrange(len(text) // 2)) + 2
    return (text[:at] + "[" * depth + "]" * depth + "," + text[at:]).encode()


def _twice(rng: random.Random, text: str) -> bytes:
    lines = text.splitlines(keepends=True)
    at = rng.randrange(1, len(lines) - 1)
    return "".join([*lines[:at], lines[at], *lines[at:]]).encode()


_SPELLINGS: tuple[Callable[[random.Random, str], bytes], ...] = (
    _truncated, _flipped, _huge, _deep, _twice,
)  # fmt: skip
