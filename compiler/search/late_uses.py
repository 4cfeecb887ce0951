"""Which uses of a posed problem's tensors come late, and who may let go of them.

What memory at a price asks at one moment or another (memory_price.py), whatever the
nodes choose.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

from partita.compiler.search.call_times import CallTimes, Tensor, Use
from partita.compiler.search.pose import Posed


class Between(NamedTuple):
    """The moments at which the forward is done with a tensor, not the backward."""

    first: int
    last: int


class LateUses:
    """Tells them, each once.

    Args:
        posed: the problem.

    Attributes:
        times: when its calls run.
    """

    def __init__(self, posed: Posed) -> None:
        self._posed = posed
        self._nodes = posed.problem.nodes
        self.times = posed.known(CallTimes)
        self._paths: dict[tuple[Tensor, int], list[Use] | None] = {}

    @cached_property
    def users(self) -> dict[Tensor, list[Use]]:
        """Who uses a tensor while it is there: not who takes the sum of it."""
        count = self.times.microbatches
        found: dict[Tensor, list[Use]] = {}
        for index, node in enumerate(self._nodes):
            for position, value in enumerate(node.operands):
                if node.times == count and index not in self._posed.let_go:
                    found.setdefault(value, []).append((index, position))
        return found

    @cached_property
    def made(self) -> list[Tensor]:
        """What calls make that is no view."""
        calls = self.times.calls.items()
        made = (index for index, call in calls if not call.is_view)
        return [value for index in made for value in self.times.values(index)]

    @cached_property
    def node_at(self) -> dict[int, int]:
        """The node of each call, by when it runs."""
        return {call.time: index for index, call in self.times.calls.items()}

    @cached_property
    def in_backward(self) -> tuple[bool, ...]:
        """Whether a use by a node is one of the backward, by position."""
        every = range(len(self._nodes))
        return tuple([not self.times.is_forward(index) for index in every])

    @cached_property
    def between(self) -> dict[Tensor, Between]:
        """Of what both halves use, when the forward is done and the backward is not."""
        calls = self.times.calls
        found: dict[Tensor, Between] = {}
        for value, uses in self.users.items():
            users = [calls[index] for index, _ in uses if index in calls]
            early = [call.time for call in users if call.is_forward]
            late = [call.time for call in users if not call.is_forward]
            if early and late:
                found[value] = Between(max(early), min(late))
        return found

    def path(self, value: Tensor, moment: int) -> list[Use] | None:
        """Return uses on the way to one at a moment or later that may box to less.

        ``None`` where nothing uses the tensor that late, nor a view of it.
        """
        key = value, moment
        if key not in self._paths:
            self._paths[key] = self._path(value, moment)
        return self._paths[key]

    def _path(self, value: Tensor, moment: int) -> list[Use] | None:
        if self.times.time(value) == moment:
            return []
        calls, users = self.times.calls, self.users.get(value, [])
        late = [u for u in users if self._end(u[0]) >= moment]
        if late:
            # Who alone may box it does so then, and needs it until then.
            is_first = len(late) == len(users) and late[0][0] in calls
            is_first &= self.times.boxed_at(late[0]) >= moment
            return [] if is_first else [late[0]]
        for use in users:
            if self.times.is_view(use):
                for seen in self.times.values(use[0]):
                    path = self.path(seen, moment)
                    if path is not None:
                        return [use, *path]
        return None

    def _end(self, node: int) -> int:
        """Return until when a use of a tensor by a node lasts."""
        call = self.times.calls.get(node)
        return self.times.end(node) if call is None else call.time

    @cached_property
    def roots(self) -> dict[Tensor, tuple[Tensor, float]]:
        """What tensors are views of, and how large that is, in parts of their own size.

        Of what is no view that is the tensor itself.
        """
        return {value: self._root(value) for value in self.users}

    def _root(self, value: Tensor) -> tuple[Tensor, float]:
        sizes, calls = [self._num_bytes(value)], self.times.calls
        while value[0] in calls and calls[value[0]].is_view:
            value = self._nodes[value[0]].operands[0]
            sizes.append(self._num_bytes(value))
        return value, max(sizes) / max(sizes[0], 1)

    def _num_bytes(self, value: Tensor) -> int:
        type_ = self._nodes[value[0]].result_types[value[1]]
        assert type_ is not None
        return type_.num_bytes
