"""In which pieces an optimizer may have what is stored whole.

Whoever stores a parameter whole along some axes (``B``) may let each rank there update
a piece of it alone (ZeRO-2; Rajbhandari et al., arXiv:1910.02054): the gradient is
reduced to the piece, and the piece is gathered when it has changed. That the gradient
is complete as the parameter is stored, and then cut (ZeRO-1), is never cheaper and is
left to pins: a boxing takes the cheapest way there is, which may pass through that.

Along which axes there are pieces, the search decides. Along which dim of the tensor, is
decided here: the one whose pieces cost least to scatter, update and gather, and where
that leaves a rank more than another dim would, also the cheapest of those that leave
least.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from partita.compiler.cost.boxing_prices import boxing_prices
from partita.compiler.cost.held_bytes import held_bytes
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Broadcast, Partial, Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.held import Held, update_seconds

Axes = tuple[int, ...]


@dataclass(frozen=True)
class Pieces:
    """Finds the pieces of parameters on one mesh.

    Attributes:
        mesh: the ranks.
        hardware: what ways and updates are priced by.
        optimizer: what updates the parameters.
    """

    mesh: Mesh
    hardware: Hardware
    optimizer: str

    def of(
        self,
        type_: TensorType,
        storages: Sequence[Placement],
        offered: Sequence[Placement],
    ) -> dict[Placement, list[Held]]:
        """Return, by storage, how a parameter may be held that is stored so.

        Args:
            type_: of the parameter.
            storages: in which it may be stored.
            offered: in which its optimizer may have it.
        """
        finer = {
            storage: _by_axes(storage, [p for p in offered if refines(p, storage)])
            for storage in storages
        }
        prices = self._prices(type_, finer)
        found: dict[Placement, list[Held]] = {}
        for storage, groups in finer.items():
            kept = [
                piece
                for axes, pieces in groups.items()
                for piece in self._worthwhile(type_, storage, axes, pieces, prices)
            ]
            found[storage] = [Held(piece, piece) for piece in kept]
        return found

    def seconds(self, type_: TensorType, storage: Placement, held: Held) -> float:
        """Return the seconds of the update of what is held so, and of its ways."""
        ways_s = held.seconds(type_, storage, self.mesh, self.hardware)
        return ways_s + self._update_seconds(type_, held.optimizer)

    def _update_seconds(self, type_: TensorType, piece: Placement) -> float:
        mesh, hardware = self.mesh, self.hardware
        return update_seconds(type_, piece, mesh, hardware, self.optimizer)

    def _worthwhile(
        self,
        type_: TensorType,
        storage: Placement,
        axes: Axes,
        pieces: Sequence[Placement],
        prices: Mapping[tuple[Placement, Placement], float],
    ) -> Iterator[Placement]:
        """Yield the pieces along these axes that no other is as cheap and small as."""
        if len(pieces) == 1:
            yield from pieces
            return
        added_up = _partial_on(storage, axes)
        costs = [
            (
                prices[added_up, piece]
                + prices[piece, storage]
                + self._update_seconds(type_, piece),
                held_bytes(type_, piece, self.mesh),
            )
            for piece in pieces
        ]
        least = min(num_bytes for _, num_bytes in costs)
        cheapest = costs.index(min(costs))
        yield pieces[cheapest]
        if costs[cheapest][1] > least:
            small = [cost if cost[1] == least else (float("inf"), 0) for cost in costs]
            yield pieces[small.index(min(small))]

    def _prices(
        self,
        type_: TensorType,
        finer: Mapping[Placement, Mapping[Axes, Sequence[Placement]]],
    ) -> dict[tuple[Placement, Placement], float]:
        """Return the prices of the ways to pieces and back of which one is chosen."""
        made: dict[Placement, None] = {}
        wanted: dict[Placement, None] = {}
        for storage, groups in finer.items():
            for axes, pieces in groups.items():
                if len(pieces) > 1:
                    made |= dict.fromkeys((_partial_on(storage, axes), *pieces))
                    wanted |= dict.fromkeys((storage, *pieces))
        if not made:
            return {}
        table = boxing_prices(type_, (*made,), (*wanted,), self.mesh, self.hardware)
        return {
            (source, target): float(table[row, column])
            for row, source in enumerate(made)
            for column, target in enumerate(wanted)
        }


def refines(piece: Placement, storage: Placement) -> bool:
    """Whether ``piece`` is split as ``storage`` is, and along other axes at most too.

    >>> at = Placement.parse
    >>> refines(at("(S(1), S(0))"), at("(B, S(0))")), refines(at("B"), at("S(0)"))
    (True, False)
    """
    pairs = zip(piece.shardings, storage.shardings, strict=True)
    return all(own == known or isinstance(known, Broadcast) for own, known in pairs)


def _by_axes(
    storage: Placement, pieces: Sequence[Placement]
) -> dict[Axes, list[Placement]]:
    """Return the pieces of a storage by the axes along which it is cut further."""
    found: dict[Axes, list[Placement]] = {}
    for piece in pieces:
        pairs = zip(piece.shardings, storage.shardings, strict=True)
        axes = tuple(axis for axis, (own, known) in enumerate(pairs) if own != known)
        found.setdefault(axes, []).append(piece)
    return found


def _partial_on(storage: Placement, axes: Axes) -> Placement:
    """Return as what a gradient is made by ranks that each saw a part of the batch."""
    placement = storage
    for axis in axes:
        placement = placement.with_axis(axis, Partial())
    return placement
