"""Remember derived rows: one file per op, shapes, arguments and version of torch."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch

from partita.compiler.ir.sbp import Reduction
from partita.compiler.rules.rule import Call, Rule

_VERSION = 1


@dataclass(frozen=True)
class Remembered:
    """What is known of a call: its row, or that there is none."""

    rule: Rule | None


@dataclass(frozen=True)
class DerivedCache:
    """A folder of what ``derive`` found.

    A file that is damaged, or of another form, is as good as none and is written anew.
    Files appear whole or not at all, so that processes may share the folder.
    """

    folder: Path

    def load(self, call: Call) -> Remembered | None:
        """Return what is remembered of ``call``; ``None`` where nothing is."""
        try:
            found: object = json.loads(self._path(call).read_text(encoding="utf-8"))
            return _parse(cast("dict[str, object]", found), call)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def store(self, call: Call, rule: Rule | None) -> None:
        """Remember the row of ``call``; a folder that cannot be written stays as is."""
        document: dict[str, object] = {"version": _VERSION, "call": _text(call)}
        if rule is None:
            document["row"] = None
        else:
            reduce = None if rule.reduce is None else str(rule.reduce)
            row = {"dims": rule.dims, "linear": rule.linear, "reduce": reduce}
            document["row"] = row
        path = self._path(call)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(document, file, indent=1)
            Path(name).replace(path)

    def _path(self, call: Call) -> Path:
        digest = hashlib.sha256(_text(call).encode()).hexdigest()[:24]
        return self.folder / "derived" / f"{call.op}-{digest}.json"


def _text(call: Call) -> str:
    operands = [str(t) for t in call.operands]
    results = [None if t is None else str(t) for t in call.results]
    return repr((torch.__version__, call.op, call.args, call.kwargs, operands, results))


def _parse(document: dict[str, object], call: Call) -> Remembered:
    if document["version"] != _VERSION or document["call"] != _text(call):
        raise ValueError("written for another call, or in another form")
    row = cast("dict[str, str | None] | None", document["row"])
    if row is None:
        return Remembered(None)
    dims, linear, reduce = row["dims"], row["linear"], row["reduce"]
    if not isinstance(dims, str) or not isinstance(linear, str):
        raise ValueError("a row is text")
    reduction = None if reduce is None else Reduction(reduce)
    return Remembered(Rule(call.op, dims, linear=linear, reduce=reduction))
