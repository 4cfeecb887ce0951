"""Work that makes much which stays, without Python looking through it meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

_MOST_UNSEEN = 2_000_000
_MOST_PART = 0.25
"""When more than so many objects have grown old unseen, and than so large a part of
those that the last look left, all are looked at before there are more: cyclic garbage
among them stays so long, and looking takes no more time the more there are."""


@dataclass
class _Unseen:
    """How many objects grew old unseen since the collector last saw all of them."""

    count: int = 0
    collections: int = 0
    left: int = 0  # by the last look from here

    @property
    def is_much(self) -> bool:
        return self.count > max(_MOST_UNSEEN, _MOST_PART * self.left)


_unseen = _Unseen()


@contextmanager
def collection_paused() -> Generator[None]:
    """Within it the collector of cyclic garbage rests, if it was at work.

    Capturing and searching a deep model make millions of objects that stay, as reading
    its plan does; looking through all that the process holds, again and again, takes a
    third of the search's time, a fifth of the capture's, half of the reading's. Looking
    through them once behind it, as what is young, takes a tenth: they are old at once.
    """
    was_at_work = gc.isenabled()
    if was_at_work and _unseen.is_much:
        gc.collect()
        _unseen.left = len(gc.get_objects())
    gc.disable()
    try:
        yield
    finally:
        if was_at_work:
            _grow_old()
            gc.enable()


def _grow_old() -> None:
    """Let the collector take all objects for old ones."""
    collections = gc.get_stats()[-1]["collections"]
    if collections != _unseen.collections:
        _unseen.count, _unseen.collections = 0, collections
    _unseen.count += gc.get_count()[0]
    if not gc.get_freeze_count():  # what the program froze is to stay so
        gc.freeze()
        gc.unfreeze()
