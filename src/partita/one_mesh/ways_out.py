"""What to do when no plan does all that was asked: who conflicts, and what would help.

Everything is tried, nothing is guessed: a way out is one for which a plan was found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from partita.compiler.capture.capture import Captured
from partita.compiler.capture.inputs import InputSpec
from partita.compiler.errors import BadOptions, CaptureFailed, NoSolution
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.units import format_room, format_seconds, parse_bytes
from partita.compiler.search.conflict import smallest_conflict
from partita.compiler.search.parts import Clock
from partita.one_mesh.too_large import too_large
from partita.options import Options

Attempt = Callable[[Captured, Mesh, Options], Plan]
"""Plans, or raises ``NoSolution``."""

_MEMORY = "memory"
_MOST_DOUBLINGS = 3


@dataclass(frozen=True)
class Refused:
    """A request that no plan was found for.

    Attributes:
        captured: the model.
        mesh: the ranks.
        options: what was asked.
        attempt: plans another request.
        recapture: captures the model again, for other inputs.
        clock: when to stop trying.
    """

    captured: Captured
    mesh: Mesh
    options: Options
    attempt: Attempt
    recapture: Callable[[InputSpec], Captured]
    clock: Clock

    def explained(self, refusal: NoSolution) -> NoSolution:
        """Return the refusal with what conflicts and what would help, in its text."""
        refusal = self._of_least(refusal)
        parts = [str(refusal)]
        if len(self._demands) > 1 and self.conflict == (_MEMORY,):
            parts.append("no pin is to blame")
        elif len(self.conflict) > 1:
            parts.append(f"what conflicts: {' and '.join(self.conflict)}")
        found = [f"{way}, {_price(plan)}" for way, plan in self._ways(refusal)]
        if found:
            parts.append(f"a plan was found {'; or '.join(found)}")
        return NoSolution("; ".join(parts), refusal.least_bytes, refusal.state_bytes)

    def _of_least(self, refusal: NoSolution) -> NoSolution:
        """Return the refusal of what needs least, of any number of microbatches.

        None but one were tried where what stays from step to step is over the limit;
        where that alone has room, they are.
        """
        state, least = refusal.state_bytes, refusal.least_bytes
        is_tried = self.options.microbatches != "auto" or state <= self._limit_bytes
        if is_tried or least is None:
            return refusal
        needed = self._least_bytes(replace(self.options, memory=state))
        if needed is None or needed >= least:
            return refusal
        return too_large(self._limit_bytes, needed, state)

    def _least_bytes(self, options: Options) -> int | None:
        """Return the bytes of what needs least, as far as the time allows."""
        if self.clock.left_s <= 0:
            return None
        limit = min(options.time_limit, self.clock.left_s)
        options = replace(options, time_limit=limit)
        try:
            return self.attempt(self.captured, self.mesh, options).predicted.bytes
        except NoSolution as refusal:
            return refusal.least_bytes

    @cached_property
    def conflict(self) -> tuple[str, ...]:
        """The smallest set of demands for which no plan is found.

        Empty where they are not to blame, or the time is over before it is known.
        """
        found = smallest_conflict(self._demands, self._is_refused)
        return () if self.clock.left_s <= 0 else tuple(found)

    @property
    def _demands(self) -> tuple[str, ...]:
        limits = () if self.options.memory is None else (_MEMORY,)
        return (*limits, *(f"pin {name!r}" for name in self.options.pins))

    @property
    def _limit_bytes(self) -> int:
        return 0 if self.options.memory is None else parse_bytes(self.options.memory)

    def _with(self, demands: Sequence[str]) -> Options:
        """Return the options with these demands alone."""
        options = self.options
        return replace(
            options,
            memory=options.memory if _MEMORY in demands else None,
            pins={n: p for n, p in options.pins.items() if f"pin {n!r}" in demands},
        )

    def _is_refused(self, demands: Sequence[str]) -> bool:
        return self._try(self.captured, self.mesh, self._with(demands)) is None

    def _try(self, captured: Captured, mesh: Mesh, options: Options) -> Plan | None:
        """Return a plan; none where there is none, or the time is over.

        Nor where what was changed does not go with the rest of what is asked: a batch
        of 2 in 4 microbatches.
        """
        if self.clock.left_s <= 0:
            return None
        limit = min(options.time_limit, self.clock.left_s)
        try:
            return self.attempt(captured, mesh, replace(options, time_limit=limit))
        except (BadOptions, NoSolution):
            return None

    def _ways(self, refusal: NoSolution) -> Iterator[tuple[str, Plan]]:
        """Yield changes of the request that a plan was found for."""
        yield from self._without_pins()
        if _MEMORY not in self._demands or refusal.least_bytes is None:
            return
        room = format_room(refusal.least_bytes)
        more = replace(self.options, memory=room)
        plan = self._try(self.captured, self.mesh, more)
        if plan is not None:
            yield f"within {room}", plan
        if not self._is_full(refusal):
            yield from self._in_microbatches()
        yield from _first(self._on_more_ranks(refusal))
        if not self._is_full(refusal):
            yield from _first(self._for_smaller_batches())

    def _is_full(self, refusal: NoSolution, more: int = 1) -> bool:
        """Whether what stays from step to step is too much, on so many times the ranks.

        No batch is so small that it would fit.
        """
        leaves = self.captured.inputs.leaves.values()
        inputs = sum(leaf.num_bytes for leaf in leaves if isinstance(leaf, TensorType))
        return (refusal.state_bytes - inputs) / more > self._limit_bytes

    def _without_pins(self) -> Iterator[tuple[str, Plan]]:
        """Yield plans without one of the pins that conflict, the fastest first.

        Where none of them alone is enough, one without as few as turn out to do.
        """
        found: list[tuple[str, Plan]] = []
        for pin in self.conflict:
            if pin != _MEMORY:
                found += self._without([pin])
        yield from sorted(found, key=lambda way: way[1].predicted.seconds)
        if not found and len(self.conflict) > 1:
            kept: list[str] = [_MEMORY] if _MEMORY in self._demands else []
            for pin in self._demands:
                if pin not in kept and not self._is_refused([*kept, pin]):
                    kept.append(pin)
            yield from self._without([d for d in self._demands if d not in kept])

    def _without(self, pins: Sequence[str]) -> list[tuple[str, Plan]]:
        others = [demand for demand in self._demands if demand not in pins]
        plan = self._try(self.captured, self.mesh, self._with(others))
        return [] if plan is None else [(f"without {' and '.join(pins)}", plan)]

    def _in_microbatches(self) -> Iterator[tuple[str, Plan]]:
        """Yield a plan of a batch in parts, if one piece was asked for."""
        if self.options.microbatches != "auto":
            more = replace(self.options, microbatches="auto")
            plan = self._try(self.captured, self.mesh, more)
            if plan is not None:
                yield f"in {plan.microbatches} microbatches", plan

    def _on_more_ranks(self, refusal: NoSolution) -> Iterator[tuple[str, Plan]]:
        """Yield plans on meshes with an axis doubled, again and again."""
        for doubling in range(1, _MOST_DOUBLINGS + 1):
            if self._is_full(refusal, 1 << doubling):
                continue
            plans: list[Plan] = []
            for axis in self.mesh.names:
                axes = {n: s << doubling * (n == axis) for n, s in self.mesh.axes}
                plan = self._try(self.captured, Mesh(**axes), self.options)
                plans += [] if plan is None else [plan]
            if plans:
                fastest = min(plans, key=lambda plan: plan.predicted.seconds)
                yield f"on {fastest.mesh.size} ranks ({fastest.mesh})", fastest

    def _for_smaller_batches(self) -> Iterator[tuple[str, Plan]]:
        """Yield plans for half of the batch, and half of that."""
        leaves = self.captured.inputs.leaves
        batch = batch_of(leaves)
        while batch > 1 and self.clock.left_s > 0:
            batch //= 2
            spec = replace(self.captured.inputs, leaves=_cut(leaves, batch))
            try:
                captured = self.recapture(spec)
            except CaptureFailed:
                return
            plan = self._try(captured, self.mesh, self.options)
            if plan is not None:
                yield f"for a batch of {batch}", plan


def _first(ways: Iterator[tuple[str, Plan]]) -> Iterator[tuple[str, Plan]]:
    way = next(ways, None)
    if way is not None:
        yield way


def batch_of(leaves: Mapping[str, object]) -> int:
    """Return the size of the first dim of the first input that has one."""
    types = (leaf for leaf in leaves.values() if isinstance(leaf, TensorType))
    return next((type_.shape[0] for type_ in types if type_.shape), 1)


def _cut(leaves: Mapping[str, object], batch: int) -> dict[str, object]:
    """Return the leaves with ``batch`` in place of what is their batch."""
    whole = batch_of(leaves)
    return {
        name: TensorType((batch, *leaf.shape[1:]), leaf.dtype)
        if isinstance(leaf, TensorType) and leaf.shape[:1] == (whole,)
        else leaf
        for name, leaf in leaves.items()
    }


def _price(plan: Plan) -> str:
    return f"{format_seconds(plan.predicted.seconds)} a step"
