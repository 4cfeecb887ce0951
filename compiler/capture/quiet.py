"""Silence while an export fails: what went wrong is told in one line, by its caller."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stderr

_TALKS = (
    "torch.export",
    "torch._export",
    "torch._subclasses.fake_tensor",
    "torch.fx.experimental.symbolic_shapes",
)


@contextmanager
def quiet_failure() -> Generator[None]:
    """Within it a failing export says nothing but its exception.

    Torch logs, and prints the graph so far. What else is written to standard error
    comes out where all goes well.
    """
    loggers = [logging.getLogger(name) for name in _TALKS]
    were = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            yield
        sys.stderr.write(said.getvalue())
    finally:
        for logger, was in zip(loggers, were, strict=True):
            logger.disabled = was
