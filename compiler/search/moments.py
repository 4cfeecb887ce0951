"""The moments of a step, numbered in order: its calls, and what is made again for them.

Before a call of the backward, all that is made again for it is made in the order of the
forward (``ir/again.py``). So each call has a moment for every call of the forward that
might be made again for it, and then one of its own.
"""

from __future__ import annotations

from typing import NamedTuple


class Moments(NamedTuple):
    """Numbers the moments of a step whose forward has ``num_forward`` calls.

    >>> moments = Moments(2)
    >>> moments.of_call(-1), moments.of_call(0), moments.of_call(1)
    (-1, 2, 5)
    >>> moments.of_again(1, 0), moments.call_at(3), moments.call_at(5)
    (3, 1, 1)
    """

    num_forward: int

    def of_call(self, call: int) -> int:
        """Return the moment of a call; that of -1 is before all."""
        return call * (self.num_forward + 1) + self.num_forward

    def of_again(self, call: int, maker: int) -> int:
        """Return when a call of the forward is made again, if it is for this call."""
        return call * (self.num_forward + 1) + maker

    def call_at(self, moment: int) -> int:
        """Return the call that runs at a moment, or that makers work again for."""
        return moment // (self.num_forward + 1)

    def maker_at(self, moment: int) -> int | None:
        """Return the call of the forward that might be made again at a moment."""
        maker = moment % (self.num_forward + 1)
        return None if maker == self.num_forward else maker
