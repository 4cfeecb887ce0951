"""The moments of a step, numbered in order: its calls, their boxings, what is remade.

Before a call of the backward, all that is made again for it is made in the order of the
forward (``ir/again.py``). So each call has a moment for every call of the forward that
might be made again for it, and then one of its own.

Around each of these are moments of boxings: two before it for each operand, at the
first of which that is still there as it was made, and two behind it for each output
that a call makes. A *place* numbers calls with their boxings alone.
"""

from __future__ import annotations

from typing import NamedTuple


class Moments(NamedTuple):
    """Numbers the moments of a step whose forward has ``num_forward`` calls.

    ``before`` and ``behind`` count the moments of boxings around each call.

    >>> moments = Moments(2)
    >>> moments.of_call(-1), moments.of_call(0), moments.of_call(1)
    (-1, 2, 5)
    >>> moments.of_again(1, 0), moments.call_at(3), moments.call_at(5)
    (3, 1, 1)
    >>> moments = Moments(2, 2, 2)
    >>> moments.boxed_before(1, 0), moments.place_of(1), moments.boxed_behind(1, 0)
    (5, 7, 8)
    >>> moments.of_place(5), moments.of_call(1), moments.of_again(1, 0)
    (25, 27, 17)
    """

    num_forward: int
    before: int = 0
    behind: int = 0

    @property
    def _around(self) -> int:
        return self.before + 1 + self.behind

    def place_of(self, call: int) -> int:
        """Return the place of a call."""
        return call * self._around + self.before

    def boxed_before(self, call: int, operand: int) -> int:
        """Return the place at which an operand of a call begins to be boxed."""
        return call * self._around + 2 * operand

    def boxed_behind(self, call: int, output: int) -> int:
        """Return where an output of a call begins to be boxed: one of its outputs."""
        return self.place_of(call) + 1 + 2 * output

    def call_of(self, place: int) -> int:
        """Return the call that is at a place, or around which it is."""
        return place // self._around

    def of_place(self, place: int) -> int:
        """Return the moment of a place."""
        call, part = divmod(place, self._around)
        return self.of_call(call) + part - self.before

    def of_call(self, call: int) -> int:
        """Return the moment of a call; that of -1 is before all."""
        return self.of_again(call, self.num_forward)

    def of_again(self, call: int, maker: int) -> int:
        """Return when a call of the forward is made again, if it is for this call."""
        number = call * (self.num_forward + 1) + maker
        return number * self._around + self.before

    def call_at(self, moment: int) -> int:
        """Return the call that runs at a moment, or that makers work again for."""
        return moment // self._around // (self.num_forward + 1)

    def maker_at(self, moment: int) -> int | None:
        """Return the call of the forward that might be made again around a moment."""
        maker = moment // self._around % (self.num_forward + 1)
        return None if maker == self.num_forward else maker

    def is_boxing(self, moment: int) -> bool:
        """Whether it is a boxing that might run at a moment, not a call."""
        return moment % self._around != self.before
