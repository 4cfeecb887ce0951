"""The boxings of a plan: what is re-placed, for whom, when, and by which steps."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from partita.compiler.cost.boxing import (
    cheapest_steps,
    step_seconds,
    step_sent_bytes,
)
from partita.compiler.cost.step import Step, payload_bytes
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.again import again_key
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import (
    InputKind,
    OutputKind,
    Phase,
    Value,
    info,
    type_of,
)
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.document import (
    Boxing,
    LoweringStep,
    boxing_key,
)
from partita.compiler.plan.uses import storage_key, times_in_step
from partita.compiler.search.again import Again
from partita.compiler.search.chosen import Chosen
from partita.compiler.search.held import Held


def boxings_of(
    chosen: Chosen,
    held: Mapping[str, Held],
    again: Collection[str],
    asked: Again,
    mesh: Mesh,
    hardware: Hardware,
) -> tuple[Boxing, ...]:
    """Return the boxings of what was chosen.

    Args:
        chosen: what every node does, what is made again among them.
        held: how trained parameters are held, by name.
        again: keys of boxings that are made again for the backward.
        asked: which others are.
        mesh: the ranks.
        hardware: what steps are chosen and priced by.
    """
    return _Boxings(chosen, held, again, asked, mesh, hardware).all()


def made_twice(boxings: Sequence[Boxing]) -> tuple[str, ...]:
    """Return the keys of the boxings that are made again."""
    keys = {boxing.key for boxing in boxings}
    return tuple(b.key for b in boxings if again_key(b.key) in keys)


_Way = tuple[TensorType, int, tuple[Placement, ...]]
"""What is brought, how often in a step, from where to where: alike, lowered alike."""


@dataclass(frozen=True)
class _Boxings:
    chosen: Chosen
    held: Mapping[str, Held]
    again: Collection[str]
    asked: Again
    mesh: Mesh
    hardware: Hardware
    known: dict[_Way, tuple[LoweringStep, ...]] = field(
        default_factory=dict["_Way", tuple[LoweringStep, ...]]
    )

    def all(self) -> tuple[Boxing, ...]:
        found: list[Boxing] = []
        for (value, target), users in self.chosen.boxed().items():
            source = self.chosen.nodes[value.node].signature.results[value.index]
            assert source is not None
            key = boxing_key(info(value.node).key, value.index, target)
            halves = {phase is Phase.FORWARD for phase in users.values()}
            wanted = key in self.again or self.asked.has_boxing(value, key, users)
            parts = {key: tuple(users)}
            if wanted and len(halves) > 1:
                parts = {
                    own: tuple(
                        user
                        for user, phase in users.items()
                        if (phase is Phase.FORWARD) is in_forward
                    )
                    for own, in_forward in ((key, True), (again_key(key), False))
                }
            for own, part in parts.items():
                why = why_wanted(source, target, part)
                found.append(self._boxing(own, value, source, target, part, why))
        return (*self._entering(), *found)

    def _entering(self) -> Iterator[Boxing]:
        """Yield what brings parameters from their optimizers to storage."""
        for node, role in self.chosen.program.placeholders():
            held = self.held.get(role.name)
            if role.kind is not InputKind.PARAMETER or held is None:
                continue
            value = Value(node, 0)
            storage = self.chosen.nodes[node].signature.results[0]
            assert storage is not None
            if held.optimizer != storage:
                name = info(node).key
                key = storage_key(name, storage)
                why = why_entering(held.optimizer, storage)
                yield self._boxing(key, value, held.optimizer, storage, (name,), why)

    def _boxing(
        self,
        key: str,
        value: Value,
        source: Placement,
        target: Placement,
        users: tuple[str, ...],
        why: str,
    ) -> Boxing:
        stops = self._stops(source, target, users)
        count = self.chosen.program.in_time.count

        def made(lowering: tuple[LoweringStep, ...]) -> Boxing:
            return Boxing(
                key=key,
                producer=info(value.node).key,
                index=value.index,
                source=source,
                target=target,
                lowering=lowering,
                consumers=users,
                why=why,
            )

        times = 1 if count == 1 else times_in_step(made(()), count)
        way = type_of(value), times, stops
        lowering = self.known.get(way)
        if lowering is None:
            type_, _, stops = way
            steps = lowered(type_, stops, times, self.mesh, self.hardware)
            lowering = self.known[way] = steps
        return made(lowering)

    def _stops(
        self, source: Placement, target: Placement, users: tuple[str, ...]
    ) -> tuple[Placement, ...]:
        """Return where a tensor is brought; a gradient where it is to be complete."""
        stops = source, target
        for user in users:
            kind, _, name = user.partition(":")
            if kind == OutputKind.GRADIENT and name in self.held:
                stops = source, self.held[name].gradient, target
        return stops


def why_wanted(source: Placement, target: Placement, users: Sequence[str]) -> str:
    """Return why there is a boxing; ``users`` are all who want it, one at least."""
    others = len(users) - 1
    more = f" and {others} more" if others else ""
    return f"made as {source}, wanted as {target} by {users[0]}{more}"


def why_entering(optimizer: Placement, storage: Placement) -> str:
    """Return why a parameter is brought from its optimizer to storage."""
    return f"updated as {optimizer}, stored as {storage}"


def lowered(
    type_: TensorType,
    stops: Sequence[Placement],
    times: int,
    mesh: Mesh,
    hardware: Hardware,
) -> tuple[LoweringStep, ...]:
    """Return the cheapest steps from stop to stop, as plans tell them.

    Args:
        type_: of the whole tensor.
        stops: where it is made, and to where it is brought, one after another.
        times: how often a step of training does it.
        mesh: the ranks.
        hardware: what steps are chosen and priced by.
    """
    return tuple(
        _lowered_step(type_, step, times, mesh, hardware)
        for start, stop in pairwise(stops)
        for step in cheapest_steps(type_, start, stop, mesh, hardware).steps
    )


def _lowered_step(
    type_: TensorType, step: Step, times: int, mesh: Mesh, hardware: Hardware
) -> LoweringStep:
    return LoweringStep(
        kind=str(step.kind),
        axis=mesh.names[step.axis],
        after=step.after,
        payload=payload_bytes(type_, step, mesh),
        bytes=times * step_sent_bytes(type_, step, mesh, hardware),
        seconds=times * step_seconds(type_, step, mesh, hardware),
    )
