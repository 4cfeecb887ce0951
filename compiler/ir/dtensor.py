"""Placements to and from those of ``torch.distributed.tensor``.

DTensor applies its placements from the first mesh dim to the last and chunks as
``torch.chunk`` does, as Partita does; it has no segmented splits.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.distributed.tensor import Partial as DTensorPartial
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import Placement as DTensorPlacement

from partita.compiler.errors import BadPlacement
from partita.compiler.ir.sbp import (
    Broadcast,
    Partial,
    Placement,
    Reduction,
    Sharding,
    Split,
)


def to_dtensor(placement: Placement) -> tuple[DTensorPlacement, ...]:
    """Return what DTensor calls ``placement``.

    >>> to_dtensor(Placement.parse("(S(0), B, P(max))"))
    (Shard(dim=0), Replicate(), Partial(max))

    Raises:
        BadPlacement: for a segmented split, of which DTensor knows none.
    """
    return tuple(_to_dtensor(sharding, placement) for sharding in placement.shardings)


def from_dtensor(placements: Sequence[DTensorPlacement]) -> Placement:
    """Return the placement that DTensor calls ``placements``.

    >>> str(from_dtensor([Shard(1), Replicate()]))
    '(S(1), B)'

    Raises:
        BadPlacement: for a kind that Partita does not have.
    """
    return Placement(tuple(_from_dtensor(placement) for placement in placements))


def _to_dtensor(sharding: Sharding, whole: Placement) -> DTensorPlacement:
    match sharding:
        case Split(dim, ()):
            return Shard(dim)
        case Split(dim):
            raise BadPlacement(
                f"placement {whole}: DTensor has no segmented split {sharding}; box "
                f"the tensor to S({dim}) or B on that axis first"
            )
        case Partial(reduction):
            return DTensorPartial(str(reduction))
        case Broadcast():
            return Replicate()


def _from_dtensor(placement: DTensorPlacement) -> Sharding:
    if type(placement) is Shard:  # a subclass has another order of shards
        return Split(placement.dim)
    if isinstance(placement, Replicate):
        return Broadcast()
    known = {str(reduction) for reduction in Reduction}
    if isinstance(placement, DTensorPartial) and placement.reduce_op in known:
        return Partial(Reduction(placement.reduce_op))
    raise BadPlacement(
        f"DTensor placement {placement!r} has no counterpart; want Shard(dim), "
        f"Replicate(), or Partial of {', '.join(sorted(known))}"
    )
