"""Numbers that a model draws by Python's ``random`` or numpy are refused.

A trace would hold the ones that it saw: every step would then drop the same layer, or
mix in the same share, where the model itself draws anew.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from partita.compiler.capture.keys import is_user_file
from partita.compiler.errors import CaptureFailed


def refuse_other_draws(model: object, call: Callable[[], Any]) -> Any:
    """Return what ``call``, which runs ``model``, returns.

    Raises:
        CaptureFailed: naming the line that draws; ``call`` has then run twice.
    """
    before = _drawn()
    found = call()
    if _drawn() == before:
        return found
    line = _Watch().line_of(call)
    raise CaptureFailed(
        f"{line}cannot capture {type(model).__name__}: a number is drawn by Python's "
        "random or by numpy, which would be the same in every step; draw with "
        "torch.rand, and choose by torch.where, or give the number as an input"
    )


def _numpy() -> ModuleType | None:
    """Return numpy's random numbers, if anyone may draw them."""
    return sys.modules.get("numpy.random")


def _drawn() -> tuple[object, ...]:
    """Return what changes with every number that is drawn, or nearly."""
    numpy = _numpy()
    state: Any = numpy.get_state(legacy=False)["state"] if numpy else {}
    own = (state["key"].tobytes(), state["pos"]) if state else ()
    return random.getstate(), own


@dataclass
class _Watch:
    """Looks after every line of a user's code whether it has drawn."""

    before: tuple[object, ...] = ()
    last: str = ""
    found: str = ""

    def line_of(self, call: Callable[[], Any]) -> str:
        """Return ``file:line: `` of what draws first in ``call``; "" where none did."""
        self.before = _drawn()
        outer = sys.gettrace()
        sys.settrace(self._enter)
        try:
            call()
        finally:
            sys.settrace(outer)
        self._look()
        return self.found

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._step if _is_watched(frame.f_code.co_filename) else None

    def _step(self, frame: FrameType, event: str, arg: Any) -> Any:
        self._look()
        self.last = f"{frame.f_code.co_filename}:{frame.f_lineno}: "
        return None if self.found else self._step

    def _look(self) -> None:
        if not self.found and _drawn() != self.before:
            self.found = self.last


def _is_watched(file: str) -> bool:
    numpy = _numpy()
    home = str(Path(numpy.__file__).parent) if numpy and numpy.__file__ else file + " "
    return is_user_file(file) and file != random.__file__ and not file.startswith(home)
