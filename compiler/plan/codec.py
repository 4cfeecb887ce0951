"""Records to plain JSON values and back, driven by the records' own annotations.

A value with one printed form (mesh, placement, tensor type, reference) is text in
JSON. The schema has been checked before a ``decoder`` runs, so what can still be wrong
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


Decoder = Callable[[Any], Any]


@cache
def decoder(wanted: Any) -> Decoder:
    """Return what makes values of type ``wanted`` of JSON values.

    It raises ``BadPlan`` with where in the value it is, what was found and wanted.
    """
    if wanted is Any:
        return lambda data: data
    if get_origin(wanted) in (Union, UnionType):
        (inner,) = (part for part in get_args(wanted) if part is not NoneType)
        part = decoder(inner)
        return lambda data: None if data is None else part(data)
    if get_origin(wanted) is tuple:
        return _list_decoder(decoder(get_args(wanted)[0]))
    if get_origin(wanted) is Mapping:
        return _object_decoder(decoder(get_args(wanted)[1]))
    if is_dataclass(wanted) and wanted not in _PARSERS:
        return _record_decoder(wanted)
    return _leaf_decoder(wanted)


def _list_decoder(part: Decoder) -> Decoder:
    def decode(data: Any) -> Any:
        made: list[Any] = []
        for position, item in enumerate(data):
            try:
                made.append(part(item))
            except BadPlan as error:
                raise BadPlan(f"[{position}]{error}") from None
        return tuple(made)

    return decode


def _object_decoder(part: Decoder) -> Decoder:
    def decode(data: Any) -> Any:
        made: dict[str, Any] = {}
        for key, item in data.items():
            try:
                made[key] = part(item)
            except BadPlan as error:
                raise BadPlan(f".{key}{error}") from None
        return made

    return decode


def _record_decoder(wanted: Any) -> Decoder:
    hints = get_type_hints(wanted)
    parts = [(name, key, decoder(hints[name])) for name, key in record_fields(wanted)]
    derived: tuple[str, ...] = getattr(wanted, "derived", ())

    def decode(data: Any) -> Any:
        values: dict[str, Any] = {}
        for name, key, part in parts:
            if key in data:
                try:
                    values[name] = part(data[key])
                except BadPlan as error:
                    raise BadPlan(f".{key}{error}") from None
        record = wanted(**values)
        for name in derived:
            right = encode(getattr(record, name))
            if name in data and data[name] != right:
                raise BadPlan(
                    f".{name}: found {data[name]!r}, its steps make it {right!r}"
                )
        return record

    return decode


def _leaf_decoder(wanted: Any) -> Decoder:
    parse = _PARSERS.get(wanted, wanted)

    def decode(data: Any) -> Any:
        try:
            value = parse(data)
            if isinstance(value, float) and not math.isfinite(value):
                raise BadPlan(f"found {data!r}, wanted a finite number")
        except (ValueError, OverflowError) as error:
            raise BadPlan(f": {str(error)[:300]}") from None
        return value

    return decode
