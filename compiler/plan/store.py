"""The document as JSON: text, form (the schema) and records.

Safe with a document from a stranger: every failure is one line that names file, key,
found and wanted.
"""

from __future__ import annotations

import json
import os
import re
import sys
from errno import EISDIR
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from partita.compiler.errors import BadPlan
from partita.compiler.form import Form
from partita.compiler.plan.codec import decoder, encode
from partita.compiler.plan.document import VERSION, Document
from partita.compiler.plan.units import shortened

if TYPE_CHECKING:
    import jsonschema

D = TypeVar("D", bound=Document)

_OPEN = re.compile(r"/(?:dev|proc/self)/fd/(\d+)", re.ASCII)
"""The paths of files that are open; /dev/stdout is a link to one."""

_MOST_LINKS = 40
"""As many links as systems follow to a file."""


@cache
def _form() -> Form:
    return Form(read_schema())


def read_schema() -> dict[str, Any]:
    """Return the JSON Schema of a plan."""
    text = (
        files("partita.compiler.plan").joinpath("plan.schema.json").read_text("utf-8")
    )
    return json.loads(text)


def check_form(data: Any, where: str) -> None:
    """Check that ``data`` has the form that the schema asks of a plan.

    Raises:
        BadPlan: naming the first key that differs.
    """
    if not isinstance(data, dict):
        raise BadPlan(f"{where}: found {_short(data)}, wanted a plan (a JSON object)")
    version: object = cast("dict[str, Any]", data).get("version")
    if type(version) is not int or version != VERSION:
        raise BadPlan(f"{where}: version: found {_short(version)}, wanted {VERSION}")
    plan = cast("dict[str, Any]", data)
    try:
        error = next(_form().errors(plan), None)
    except RecursionError:
        raise BadPlan(f"{where}: found too many nested brackets") from None
    if error is not None:
        raise BadPlan(f"{where}: {describe_error(error)}")


def describe_error(error: jsonschema.ValidationError) -> str:
    """Return ``key: found, wanted`` for what the schema refuses."""
    steps = [f"[{p}]" if isinstance(p, int) else f".{p}" for p in error.absolute_path]
    path = "".join(steps).removeprefix(".") or "plan"
    kind, wanted = cast("tuple[str, Any]", (error.validator, error.validator_value))
    found = error.instance
    match kind:
        case "required":
            missing = next(key for key in wanted if key not in found)
            return f"{path}: the key {missing!r} is missing"
        case "additionalProperties" if isinstance(found, dict):
            known = cast("dict[str, Any]", error.schema).get("properties", {})
            keys = cast("dict[str, Any]", found)
            extra = next(key for key in keys if key not in known)
            return f"{path}: unknown key {_short(extra)}, wanted one of {_short(known)}"
        case "anyOf" | "oneOf" | "pattern":
            form = cast("dict[str, Any]", error.schema).get("description", wanted)
            return f"{path}: found {_short(found)}, wanted {form}"
        case "type" | "enum":
            names = wanted if isinstance(wanted, str) else " or ".join(map(str, wanted))
            return f"{path}: found {_short(found)}, wanted {names}"
        case _:
            return f"{path}: found {_short(found)}, wanted {kind} {wanted}"


def _short(value: Any) -> str:
    if isinstance(value, dict):
        value = ", ".join(cast("dict[str, Any]", value)) or "an empty object"
        return value if len(value) <= 300 else f"{value[:300]}..."
    if isinstance(value, list):
        return f"a list of {len(cast('list[Any]', value))}"
    return shortened(json.dumps(value))


def decode_document(cls: type[D], data: Any, where: str) -> D:
    """Return the document that ``data``, of the right form, stands for.

    Raises:
        BadPlan: for a text in it that does not parse.
    """
    try:
        values = decoder(cls)(data)
    except BadPlan as error:
        raise BadPlan(f"{where}: {str(error).removeprefix('.')}") from None
    return cast(D, values)


def encode_document(document: Document) -> dict[str, Any]:
    """Return the document as plain JSON values."""
    return cast("dict[str, Any]", encode(document))


def format_json(data: dict[str, Any]) -> str:
    """Return ``data`` as JSON with one entry of each part a line, keys sorted.

    >>> print(format_json({"nodes": {"b": {"y": 2, "x": 1}, "a": {}}, "version": 1}))
    {
    "nodes": {
      "a": {},
      "b": {"x": 1, "y": 2}
    },
    "version": 1
    }
    """
    parts = [f"{json.dumps(key)}: {_part(data[key])}" for key in sorted(data)]
    return "{\n" + ",\n".join(parts) + "\n}"


def _part(value: Any) -> str:
    if isinstance(value, dict) and value:
        items = sorted(cast("dict[str, Any]", value).items())
        lines = [f"  {json.dumps(key)}: {_line(item)}" for key, item in items]
        return "{\n" + ",\n".join(lines) + "\n}"
    if isinstance(value, list) and value:
        lines = [f"  {_line(item)}" for item in cast("list[Any]", value)]
        return "[\n" + ",\n".join(lines) + "\n]"
    return _line(value)


def _line(value: Any) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)


def write_json(path: str | os.PathLike[str], data: dict[str, Any]) -> None:
    """Write ``data`` to the file at ``path``, whole or not at all."""
    write_text(path, format_json(data) + "\n")


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write ``text`` to the file at ``path``, whole or not at all."""
    write_bytes(path, text.encode())


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write ``data`` to the file at ``path``, whole or not at all.

    To a file that is open already, such as ``/dev/stdout``, it is added where that
    stands: others have written to it, and will.
    """
    number = _descriptor(path)
    if number is not None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        with os.fdopen(os.dup(number), "wb") as stream:
            stream.write(data)
        return
    target = Path(path).resolve()
    if target.exists() and not target.is_file():  # a pipe
        target.write_bytes(data)
        return
    temporary = _beside(target)
    try:
        temporary.write_bytes(data)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Check that ``write_bytes`` could write to ``path``.

    Raises:
        OSError: when it could not.
    """
    number = _descriptor(path)
    if number is not None:
        os.write(number, b"")  # an error where it is closed, or open to be read
        return
    target = Path(path).resolve()
    if target.is_dir():
        raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
    if target.exists() and not target.is_file():
        return
    temporary = _beside(target)
    temporary.touch()
    temporary.unlink()


def _descriptor(path: str | os.PathLike[str]) -> int | None:
    """Return the number of the open file that a path stands for, if it does."""
    at = os.path.abspath(path)
    for _ in range(_MOST_LINKS):
        known = _OPEN.fullmatch(at)
        if known is not None:
            return int(known[1])
        if not os.path.islink(at):
            break
        at = os.path.normpath(os.path.join(os.path.dirname(at), os.readlink(at)))
    return None


def _beside(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}")
