"""Memory that one rank's tensors lie in, and boxings that are being carried out."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from partita.compiler.cost.bucket_memory import Moment
from partita.compiler.cost.rank import Shard
from partita.compiler.cost.timeline import Category
from partita.compiler.ir.program import Phase


@dataclass(slots=True)
class Storage:
    """Memory that tensors lie in; ``last`` grows with their uses.

    ``is_saved`` once the backward uses what the forward made. ``until_used`` is what is
    held besides until the first use, since a message is waited for then.
    """

    key: str
    num_bytes: int
    first: int
    last: int
    category: Category
    is_saved: bool = False
    until_used: tuple[Storage, ...] = ()

    def land(self, now: int) -> None:
        """Let go of what is held besides: the message was waited for before ``now``."""
        for storage in self.until_used:
            storage.last = max(storage.last, now - 1)
        self.until_used = ()


class Tensor(NamedTuple):
    """One rank's tensor: how it lies in which storage."""

    shard: Shard
    storage: Storage


@dataclass(slots=True)
class Carried:
    """Boxings that are carried out: what is left of it, and in what they lie by now.

    ``held`` is what the last moment made, of what, and its workspace.
    """

    key: str
    phase: Phase
    moments: deque[Moment]
    storages: list[Storage]
    held: list[Storage] = field(default_factory=list[Storage])
