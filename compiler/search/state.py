"""What stays on a rank from step to step: what enters, and its optimizer's part."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import fx

from partita.compiler.cost.held_bytes import held_bytes
from partita.compiler.cost.optimizer_memory import state_bytes
from partita.compiler.ir.program import InputKind
from partita.compiler.search.pose import Posed
from partita.compiler.search.problem import Choice, made_placement


@dataclass(frozen=True, slots=True)
class State:
    """What a rank holds all the time of a tensor that enters.

    Attributes:
        num_bytes: as it is stored; if it is trained, with its moments and, where the
            optimizer has it in another placement, with that copy.
        updated_bytes: what the optimizer's step updates; ``None`` if it is not trained.
    """

    num_bytes: int
    updated_bytes: int | None


@dataclass(frozen=True)
class States:
    """Tells the state of what enters a posed problem.

    Attributes:
        posed: the problem.
        optimizer: what holds moments of every parameter.
    """

    posed: Posed
    optimizer: str

    @cached_property
    def entering(self) -> frozenset[int]:
        """The nodes that enter and stay for the whole step, by their positions."""
        return frozenset(self._kinds) - self.fed - self.received

    @cached_property
    def fed(self) -> frozenset[int]:
        """The model's inputs: let go of before the optimizer steps."""
        kind = InputKind.INPUT
        return frozenset(at for at, own in self._kinds.items() if own is kind)

    @cached_property
    def received(self) -> frozenset[int]:
        """The nodes that other stages hand over: let go of once they were used."""
        return frozenset(at for at, kind in self._kinds.items() if kind.is_received)

    @cached_property
    def _kinds(self) -> dict[int, InputKind]:
        """What each node that enters is, by its position."""
        roles = dict(self.posed.candidates.program.placeholders())
        return {
            index: roles[item].kind
            for index, item in enumerate(self.posed.items)
            if isinstance(item, fx.Node) and item in roles
        }

    def of(self, index: int, choice: Choice) -> State:
        """Return the state of the node that enters there, if it chooses so."""
        (type_,) = self.posed.problem.nodes[index].result_types
        assert type_ is not None
        mesh, stored = self.posed.problem.mesh, made_placement(choice, 0)
        num_bytes = held_bytes(type_, stored, mesh)
        if choice.held is None:
            return State(num_bytes, None)
        updated = held_bytes(type_, choice.held.optimizer, mesh)
        piece = updated if choice.held.optimizer != stored else None
        size = type_.dtype.itemsize
        return State(state_bytes(self.optimizer, num_bytes, piece, size), updated)
