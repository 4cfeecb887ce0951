"""Models of the zoo with their captured programs, each made once a test run."""

from __future__ import annotations

from functools import cache

from tests.models import zoo

from partita.compiler.capture.capture import Captured, capture


@cache
def captured(name: str) -> tuple[zoo.Built, Captured]:
    """Return a model of the zoo and its program; neither may be changed."""
    built = zoo.ZOO[name]()
    model, args, kwargs = built
    return built, capture(model, args, kwargs)
