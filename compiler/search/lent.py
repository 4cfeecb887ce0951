"""What other stages hand over and the backward needs only to make something again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from partita.compiler.search.holdings import Holdings


@dataclass(frozen=True)
class Lent:
    """A holding that was handed over, and the makers that use it.

    Where one of them is made again, it is kept until then, and so it is of all
    microbatches that wait for their backward.
    """

    number: int
    users: Sequence[int]

    def bytes_at(self, moment: int, held: Holdings, first: Mapping[int, int]) -> int:
        """Return what it holds more at a moment if one of its users is made again.

        ``first`` has when users are needed first, if they are made again.
        """
        one = held.holdings[self.number]
        needs = [first[user] for user in self.users if user in first]
        if not needs:
            return 0
        is_kept = held.moments.of_place(one.forward) < moment <= min(needs)
        return one.num_bytes * (is_kept + held.num_live - 1)


def find_lent(held: Holdings, users: Mapping[int, Collection[int]]) -> list[Lent]:
    """Return what is lent, given by holding the makers that use it."""
    return [
        Lent(number, [*users[number]])
        for number, one in enumerate(held.holdings)
        if one.first < 0 and one.num_bytes and not one.backward and users.get(number)
    ]
