"""What stays on a rank from step to step: what enters, and its optimizer's part."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import fx

from partita.compiler.cost.lifetimes import held_bytes
from partita.compiler.cost.optimizer_memory import state_sizes, sum_bytes
from partita.compiler.ir.program import InputKind
from partita.compiler.ir.sbp import Placement
from partita.compiler.search.pose import Posed


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
    def trained(self) -> dict[int, str | None]:
        """Per node that enters: the name of its parameter, if that is trained."""
        program = self.posed.candidates.program
        roles, trained = dict(program.placeholders()), program.trained
        found: dict[int, str | None] = {}
        for index, item in enumerate(self.posed.items):
            role = roles.get(item) if isinstance(item, fx.Node) else None
            if role is not None:
                is_parameter = role.kind is InputKind.PARAMETER
                is_trained = is_parameter and role.name in trained
                found[index] = role.name if is_trained else None
        return found

    def of(self, index: int, stored: Placement) -> State:
        """Return the state of the node that enters there, if it is stored so."""
        (type_,) = self.posed.problem.nodes[index].result_types
        assert type_ is not None
        mesh = self.posed.problem.mesh
        num_bytes = held_bytes(type_, stored, mesh)
        name = self.trained[index]
        if name is None:
            return State(num_bytes, None)
        held = self.posed.held(name, stored).optimizer
        updated = held_bytes(type_, held, mesh)
        size = type_.dtype.itemsize
        kept = sum(state_sizes(self.optimizer, updated, size))
        kept += sum_bytes(self.optimizer, num_bytes, size)
        copy = updated if held != stored else 0
        return State(num_bytes + copy + kept, updated)
