"""Numbers that a model draws by Python's ``random`` or numpy are refused if they count.

A program would hold the ones that were drawn as it was captured: every step would drop
the same layer, or mix in the same share, where the model itself draws anew. Whether
anything depends on them is seen where others are drawn, very small ones and large ones.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import numpy as np

from partita.compiler.capture.keys import is_user_file
from partita.compiler.errors import CaptureFailed

_SEEDS = range(1000)
"""Those looked through for two: of unlike choices, and a small number and a large."""

T = TypeVar("T")


def whatever_is_drawn(
    model: object, make: Callable[[], T], is_same: Callable[[T, T], bool]
) -> T:
    """Return what ``make`` makes of ``model``, again where numbers are drawn for it.

    Raises:
        CaptureFailed: naming the line that draws, where it depends on the numbers.
    """
    before = _drawn()
    found = make()
    if _drawn() == before:
        return found
    for pick in (min, max):
        with _first_drawn(pick):
            try:
                is_free = is_same(found, make())
            except CaptureFailed:
                is_free = False
        if not is_free:
            raise CaptureFailed(
                f"{_Watch().line_of(make)}cannot capture {type(model).__name__}: a "
                "number is drawn by Python's random or by numpy, which would be the "
                "same in every step; draw with torch.rand, and choose by torch.where, "
                "or give the number as an input"
            )
    return found


def _drawn() -> tuple[object, ...]:
    """Return what changes with every number that is drawn, or nearly.

    numpy's numbers are loaded by it, where nobody did: seen for the first time after a
    capture that loads them, they would seem to have been drawn.
    """
    state: Any = np.random.get_state(legacy=False)["state"]
    return random.getstate(), (state["key"].tobytes(), state["pos"])


@contextmanager
def _first_drawn(pick: Callable[..., int]) -> Generator[None]:
    """Within it the first number that is drawn is that of the seed that is picked."""
    state, numpys = random.getstate(), np.random.get_state()
    first = _first_of_all(random.Random, "random", "randrange")
    random.seed(pick(_SEEDS, key=first.__getitem__))
    first = _first_of_all(np.random.RandomState, "random_sample", "randint")
    np.random.seed(pick(_SEEDS, key=first.__getitem__))
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(numpys)


@cache
def _first_of_all(kind: Any, number: str, below: str) -> tuple[tuple[int, float], ...]:
    """Return ``_first_of`` every seed, which takes a good part of a second."""
    return tuple([_first_of(kind, number, below, seed) for seed in _SEEDS])


def _first_of(kind: Any, number: str, below: str, seed: int) -> tuple[int, float]:
    """Return which of two a generator would choose first, or which number it draws."""
    return int(getattr(kind(seed), below)(2)), getattr(kind(seed), number)()


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


@cache
def _is_watched(file: str) -> bool:
    # Asked for every frame of a capture, of far fewer files.
    home = str(Path(np.__file__).parent)
    return is_user_file(file) and file != random.__file__ and not file.startswith(home)
