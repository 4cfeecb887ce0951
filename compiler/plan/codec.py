"""Records to plain JSON values and back, driven by the records' own annotations.

A value with one printed form (mesh, placement, tensor type, reference) is text in
JSON. The schema has been checked before ``decode`` runs, so what can still be wrong
here is a text that does not parse and a number that no machine has.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from functools import cache, lru_cache
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

import torch

from partita.compiler.errors import BadPlan
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.document import Ref

_MOST_SEGMENTS = 1 << 16


def parse_dtype(text: str) -> torch.dtype:
    """Read ``f32`` and the like."""
    return TensorType.parse(f"{text}[]").dtype


def print_dtype(dtype: torch.dtype) -> str:
    """Write a dtype as it stands in a printed tensor type."""
    return str(TensorType((), dtype)).removesuffix("[]")


@lru_cache(maxsize=1 << 14)
def parse_placement(text: str) -> Placement:
    """Read a placement, unless it repeats a segment more often than is sane."""
    if any(len(count) > 6 for count in re.findall(r"\*(\d+)", text)):
        raise BadPlan(f"placement {text!r} has more than {_MOST_SEGMENTS} segments")
    return Placement.parse(text)


_PARSERS: Mapping[Any, Callable[[str], Any]] = {
    Mesh: Mesh.parse,
    Placement: parse_placement,
    TensorType: TensorType.parse,
    Ref: Ref.parse,
    torch.dtype: parse_dtype,
}


def record_fields(record: Any) -> Iterator[tuple[str, str]]:
    """Yield name and JSON key of the fields of a record, or of its class.

    A field whose key is ``None`` is no part of the document.
    """
    for item in fields(record):
        key = item.metadata.get("json", item.name)
        if key is not None:
            yield item.name, key


def record_keys(record: Any) -> Iterator[tuple[str, str]]:
    """Yield attribute and JSON key of all that is written of a record."""
    yield from record_fields(record)
    for name in getattr(record, "derived", ()):
        yield name, name


def encode(value: Any) -> Any:
    """Return ``value`` as plain JSON values."""
    if isinstance(value, torch.dtype):
        return print_dtype(value)
    if type(value) in _PARSERS or isinstance(value, StrEnum):
        return str(value)
    if is_dataclass(value):
        return {key: encode(getattr(value, name)) for name, key in record_keys(value)}
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        return {key: encode(item) for key, item in items}
    if isinstance(value, tuple | list):
        return [encode(item) for item in cast("tuple[Any, ...]", value)]
    return value


@cache
def _hints(record: Any) -> dict[str, Any]:
    return get_type_hints(record)


def decode(wanted: Any, data: Any, path: str) -> Any:
    """Return the value of type ``wanted`` that ``data`` stands for.

    Raises:
        BadPlan: naming ``path``, what was found and what is wanted.
    """
    if wanted is Any:
        return data
    if get_origin(wanted) in (Union, UnionType):
        if data is None:
            return None
        (wanted,) = (part for part in get_args(wanted) if part is not NoneType)
    if get_origin(wanted) is tuple:
        part = get_args(wanted)[0]
        return tuple(decode(part, item, f"{path}[{i}]") for i, item in enumerate(data))
    if get_origin(wanted) is Mapping:
        part = get_args(wanted)[1]
        return {key: decode(part, item, f"{path}.{key}") for key, item in data.items()}
    if is_dataclass(wanted) and wanted not in _PARSERS:
        return _decode_record(wanted, data, path)
    return _decode_leaf(wanted, data, path)


def _decode_record(wanted: Any, data: Any, path: str) -> Any:
    hints = _hints(wanted)
    values = {
        name: decode(hints[name], data[key], f"{path}.{key}")
        for name, key in record_fields(wanted)
        if key in data
    }
    record = wanted(**values)
    for name in getattr(wanted, "derived", ()):
        right = encode(getattr(record, name))
        if name in data and data[name] != right:
            raise BadPlan(
                f"{path}.{name}: found {data[name]!r}, its steps make it {right!r}"
            )
    return record


def _decode_leaf(wanted: Any, data: Any, path: str) -> Any:
    try:
        if wanted in _PARSERS:
            return _PARSERS[wanted](data)
        value = wanted(data)
        if isinstance(value, float) and not math.isfinite(value):
            raise BadPlan(f"found {data!r}, wanted a finite number")
    except (ValueError, OverflowError) as error:
        raise BadPlan(f"{path}: {str(error)[:300]}") from None
    return value
