"""Files of JSON as strangers write them, read strictly.

JSON only, numbers finite, no key twice, nesting bounded by the interpreter; every
failure is one line that names the file, what was found and what is wanted.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from partita.compiler.errors import PartitaError
from partita.compiler.plan.units import printable, shortened


def read_json(
    path: str | os.PathLike[str], refusal: type[PartitaError]
) -> tuple[Any, str]:
    """Return the JSON value that the file holds, and the file's name for messages.

    Raises:
        PartitaError: the ``refusal``, when there is no such file, or what it holds is
            no JSON.
    """
    where = str(path)
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
        return parse_json(text), where
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise refusal(f"{where}: cannot be read: {reason}") from None
    except UnicodeDecodeError as error:
        raise refusal(
            f"{where}: found bytes that are not UTF-8 at {error.start}, wanted JSON"
        ) from None
    except RecursionError:
        raise refusal(f"{where}: found too many nested brackets") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise refusal(f"{where}: {place}: wanted JSON: {error.msg}") from None
    except ValueError as error:
        raise refusal(f"{where}: wanted JSON: {error}") from None


def parse_json(text: str) -> Any:
    """Parse JSON; a key given twice and a number without end are ``ValueError``s."""
    endless: list[str] = []

    def read(number: str) -> float:
        found = float(number)
        if not math.isfinite(found):
            endless.append(number)
        return found

    found = json.loads(
        text, parse_float=read, parse_constant=read, object_pairs_hook=_distinct
    )
    if endless:
        place = printable(next(_endless(found)).removeprefix("."))
        at = f" at {shortened(place)}" if place else ""
        raise ValueError(f"found {shortened(endless[0])}{at}, wanted a finite number")
    return found


def _endless(value: Any) -> Iterator[str]:
    """Yield the places of numbers without end, in order."""
    if isinstance(value, dict):
        for key, item in cast("dict[str, Any]", value).items():
            yield from (f".{key}{place}" for place in _endless(item))
    elif isinstance(value, list):
        for number, item in enumerate(cast("list[Any]", value)):
            yield from (f"[{number}]{place}" for place in _endless(item))
    elif isinstance(value, float) and not math.isfinite(value):
        yield ""


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"found the key {twice!r} twice in one object")
    return found
