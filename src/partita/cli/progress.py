"""What the search says of itself while it takes long: on standard error."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator
from contextlib import contextmanager

from partita.cli.command import tell

_PATIENCE_S = 3.0


class _Late(logging.Handler):
    """Keeps messages back until it has taken so long that one wonders."""

    def __init__(self, patience_s: float) -> None:
        super().__init__(logging.INFO)
        self._speaks_at = time.monotonic() + patience_s
        self._kept: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Print a message, those kept back before it; or keep it back."""
        self._kept.append(f"partita: {record.getMessage()}")
        if time.monotonic() >= self._speaks_at:
            for line in self._kept:
                tell(line)
            self._kept.clear()


@contextmanager
def shown(patience_s: float = _PATIENCE_S) -> Generator[None]:
    """Print what ``partita``'s loggers say meanwhile, once it takes long."""
    logger, handler = logging.getLogger("partita"), _Late(patience_s)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
