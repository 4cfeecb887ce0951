"""What the reader of a plan must know of its ops."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ReportKind(StrEnum):
    """What there is to know of an op."""

    UNKNOWN = "unknown"  # no row: every rank does all of it
    DERIVED = "derived"  # no row, but one found by experiment
    WHOLE = "whole"  # its row offers no split where the plan would have wanted one


@dataclass(frozen=True, slots=True)
class Reported:
    """Something the reader must know of an op; ``seconds`` are those of its nodes."""

    op: str
    why: str
    nodes: tuple[str, ...] = ()
    kind: ReportKind = ReportKind.UNKNOWN
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class DerivedRow:
    """A row of the rule table that was found by experiment, for some of the nodes."""

    op: str
    dims: str
    linear: str
    reduce: str | None
    nodes: tuple[str, ...]
