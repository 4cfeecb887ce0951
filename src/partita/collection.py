"""Work that makes much which stays, without Python looking through it meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Generator[None]:
    """Within it the collector of cyclic garbage rests, if it was at work.

    A search of a deep model makes millions of objects and hardly a cycle; looking
    through all that the process holds, again and again, takes a third of its time.
    """
    was_at_work = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_at_work:
            gc.enable()
