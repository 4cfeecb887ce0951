"""What a rank holds while it boxes a tensor of a posed problem."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import NamedTuple

from torch import fx

from partita.compiler.cost.boxing import cheapest_steps
from partita.compiler.cost.boxing_ways import way_of
from partita.compiler.cost.bucket_memory import Moment, moments_of
from partita.compiler.cost.held_bytes import held_bytes
from partita.compiler.cost.rank import Rank, Shard
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.call_times import Tensor
from partita.compiler.search.lies import Lies
from partita.compiler.search.pose import Posed


class Boxed(NamedTuple):
    """What is held while a copy is made.

    Attributes:
        first_bytes: beside the tensor that it is of: what is made of that first, as
            what is packed of it, and what a collective takes for itself then.
        rest_bytes: beside the copy, at most, when the tensor is needed no more.
        sent_bytes: beside the copy, until a call uses it: what is on its way.
        padding_bytes: of the copy itself, as long as it is there: what it is a view of
            is as much larger.
    """

    first_bytes: int
    rest_bytes: int
    sent_bytes: int
    padding_bytes: int


class Boxings:
    """Tells what boxings hold that are carried out by themselves.

    Tensors are taken to lie as ``lies.py`` says, on the first rank, which holds
    most where no axis cuts the chunks of another.

    Args:
        posed: the problem.
    """

    def __init__(self, posed: Posed) -> None:
        self._posed = posed
        self._lies = posed.known(Lies)
        mesh, self._hardware = posed.problem.mesh, posed.candidates.hardware
        self._rank = Rank(mesh, (0,) * mesh.ndim, self._hardware.device.kind)
        self._known: dict[object, Boxed] = {}

    def of(self, value: Tensor, made: Placement, want: Placement) -> Boxed:
        """Return what is held while a tensor is boxed from one placement to another."""
        item = self._posed.items[value[0]]
        enters = isinstance(item, fx.Node) and item.op == "placeholder"
        shard = self._rank.shard(*self._lies.of(value, made))
        return self._of(self._type(value), made, want, shard, enters)

    def of_sum(self, value: Tensor, made: Placement, want: Placement) -> Boxed:
        """Return the same of what microbatches add up to, which lies in order."""
        type_ = self._type(value)
        shard = self._rank.shard(self._lies.local(type_, made))
        return self._of(type_, made, want, shard, enters=False)

    def _type(self, value: Tensor) -> TensorType:
        type_ = self._posed.problem.nodes[value[0]].result_types[value[1]]
        assert type_ is not None
        return type_

    def _of(
        self,
        type_: TensorType,
        made: Placement,
        want: Placement,
        shard: Shard,
        enters: bool,
    ) -> Boxed:
        key = type_, made, want, id(shard), enters
        if key not in self._known:
            mesh, hardware = self._posed.problem.mesh, self._hardware
            steps = cheapest_steps(type_, made, want, mesh, hardware).steps
            chain, _ = way_of(type_, steps, shard, self._rank, hardware, enters)
            num_bytes = held_bytes(type_, want, mesh)
            self._known[key] = _boxed([*moments_of([chain], _no_bucket)], num_bytes)
        return self._known[key]


def _no_bucket(*_: object) -> bool:
    return False


def _boxed(moments: Sequence[Moment], num_bytes: int) -> Boxed:
    """Return what these moments hold, one after another; the copy has so many bytes."""
    if not moments:
        return Boxed(0, 0, 0, 0)
    taken = [moment.num_bytes + moment.workspace_bytes for moment in moments]
    made = [moment.num_bytes for moment in moments]
    rest = max(map(operator.add, made, taken[1:]), default=made[-1]) - made[-1]
    sent = 0
    if len(moments) > 1 and moments[-1].until_used:
        sent = made[-2] + taken[-1] - made[-1]
    return Boxed(taken[0], rest, sent, max(0, made[-1] - num_bytes))
