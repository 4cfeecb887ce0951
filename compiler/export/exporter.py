"""What an exporter is: the name of a format and what writes a plan in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from partita.compiler.plan.document import Document


@dataclass(frozen=True, slots=True)
class Exporter:
    """One format that a plan alone is written in; ``write`` returns the file's text."""

    name: str
    summary: str
    suffix: str
    write: Callable[[Document], str]
