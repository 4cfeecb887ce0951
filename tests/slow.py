"""Mark what the gate leaves to ``make test-all``: what another test shows too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow(*values: object) -> Any:
    """Return the parameters of a test, marked as slow."""
    return pytest.param(*values, marks=pytest.mark.slow)


def all_slow_but(quick: Iterable[str], names: Iterable[str]) -> list[Any]:
    """Return names to test with: those of ``quick``, and the others marked."""
    return [name if name in quick else slow(name) for name in names]
