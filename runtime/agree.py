"""Let ranks agree: all hear the first one's answer, or each hears all the others'."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch.distributed as dist

from partita.compiler.errors import PartitaError

_T = TypeVar("_T")


def from_first_rank(make: Callable[[], _T]) -> _T:
    """Return what ``make()`` gives on rank 0, on every rank; it must pickle.

    Raises:
        PartitaError: on every rank, when it fails so on rank 0.
    """
    told: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            told[0] = make()
        except PartitaError as error:
            told[1] = error
    dist.broadcast_object_list(told, src=0)
    if told[1] is not None:
        raise told[1]
    return cast(_T, told[0])


def everyone_tells(said: _T) -> list[_T]:
    """Return what every rank says, by rank; it must pickle."""
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, said)
    return told


def everyone_checks(check: Callable[[], _T]) -> _T:
    """Return what ``check()`` gives on this rank; each calls it with its own.

    Raises:
        PartitaError: on every rank, what it raises on the first where it does.
    """
    made: list[_T] = []
    said: PartitaError | None = None
    try:
        made.append(check())
    except PartitaError as error:
        said = error
    found = next((x for x in everyone_tells(said) if x is not None), None)
    if found is not None:
        raise found
    return made[0]
