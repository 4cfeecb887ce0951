"""What a search raises whose plan is not wanted."""

from __future__ import annotations


class NotFaster(Exception):
    """No plan is faster than a known one; ``seconds`` are the fastest's, if known."""

    def __init__(self, seconds: float | None) -> None:
        super().__init__(seconds)
        self.seconds = seconds
