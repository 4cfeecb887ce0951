"""What to do when no plan does all that was asked: who conflicts, and what would help.

Everything is tried, nothing is guessed: a way out is one for which a plan was found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from partita.compiler.capture.capture import Captured
from partita.compiler.capture.inputs import InputSpec
from partita.compiler.cost.optimizer_memory import IN_ONE_KERNEL, update_bytes
from partita.compiler.errors import BadOptions, CaptureFailed, NoSolution
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import Value, type_of
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.units import format_room, format_seconds, parse_bytes
from partita.compiler.search.conflict import smallest_conflict
from partita.compiler.search.parts import Clock
from partita.one_mesh.too_large import too_large
from partita.options import Options

Attempt = Callable[[Captured, Mesh, Options], Plan]
"""Plans, or raises ``NoSolution``."""

Ways = tuple[tuple[str, Plan], ...]
"""Changes of a request, and the plans that were found for them."""

_MEMORY = "memory"
_MOST_DOUBLINGS = 3
_LESS = 0.9  # of what a plan was found to need, a limit that is tried, too


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
        known = refusal
        refusal, within = self._of_least(refusal)
        parts = [str(refusal)]
        if len(self._demands) > 1 and self.conflict == (_MEMORY,):
            parts.append("no pin is to blame")
        elif len(self.conflict) > 1:
            parts.append(f"what conflicts: {' and '.join(self.conflict)}")
        ways = self._ways(refusal, known, within)
        found = [f"{way}, {_price(plan)}" for way, plan in ways]
        if found:
            parts.append(f"a plan was found {'; or '.join(found)}")
        elif self.clock.left_s <= 0:
            parts.append(
                f"the {format_seconds(self.options.time_limit)} of time_limit were "
                "over before a way out was found"
            )
        return NoSolution("; ".join(parts), refusal.least_bytes, refusal.state_bytes)

    def _of_least(self, refusal: NoSolution) -> tuple[NoSolution, Ways]:
        """Return the refusal of what needs least, as is found in half of the time.

        With it the plan within that, if one was found on the way.
        """
        least, limit = refusal.least_bytes, self._limit_bytes
        if self.options.memory is None or least is None:
            return refusal, ()
        clock = Clock.of(self.clock.left_s / 2)
        needed = self._in_any_number(refusal, least, clock)
        needed, ways = self._lowered(needed, clock)
        if needed >= least:
            return refusal, ()
        return too_large(limit, needed, refusal.state_bytes), ways

    def _in_any_number(self, refusal: NoSolution, least: int, clock: Clock) -> int:
        """Return what is needed in as many microbatches as needs least.

        None but one were tried where what stays from step to step is over the limit;
        where that alone has room, they are.
        """
        state = refusal.state_bytes
        if self.options.microbatches != "auto" or state <= self._limit_bytes:
            return least
        if clock.left_s <= 0:
            return least
        options = self._timed(replace(self.options, memory=state), clock)
        try:
            plan = self.attempt(self.captured, self.mesh, options)
        except NoSolution as other:
            return min(least, other.least_bytes or least)
        return plan.predicted.bytes

    def _lowered(self, least: int, clock: Clock) -> tuple[int, Ways]:
        """Return what is needed by less and less, as long as a plan is found, and that.

        Far above a limit that nothing keeps to, a search looks at few plans.
        """
        held, ratio, ways = least, _LESS, Ways()
        while (lower := int(ratio * held)) > self._limit_bytes:
            room = format_room(lower)
            less = replace(self.options, memory=room)
            plan = self._try(self.captured, self.mesh, less, clock)
            if plan is not None:
                least, ways = parse_bytes(room), ((f"within {room}", plan),)
                held, ratio = plan.predicted.bytes, ratio**2
            elif ratio < _LESS:
                ratio = _LESS
            else:
                break
        return least, ways

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

    def _timed(self, options: Options, clock: Clock) -> Options:
        limit = min(options.time_limit, clock.left_s)
        return replace(options, time_limit=limit)

    def _try(
        self,
        captured: Captured,
        mesh: Mesh,
        options: Options,
        clock: Clock | None = None,
    ) -> Plan | None:
        """Return a plan; none where there is none, or the time is over.

        Nor where what was changed does not go with the rest of what is asked: a batch
        of 2 in 4 microbatches.
        """
        clock = clock or self.clock
        if clock.left_s <= 0:
            return None
        try:
            return self.attempt(captured, mesh, self._timed(options, clock))
        except (BadOptions, NoSolution):
            return None

    def _ways(
        self, refusal: NoSolution, known: NoSolution, within: Ways
    ) -> Iterator[tuple[str, Plan]]:
        """Yield changes of the request that a plan was found for.

        Args:
            refusal: of what needs least.
            known: of what was known to need least at first.
            within: those within what needs least, if they are known.
        """
        yield from self._without_pins()
        if _MEMORY not in self._demands or refusal.least_bytes is None:
            return
        least = (refusal.least_bytes, known.least_bytes or refusal.least_bytes)
        rooms = dict.fromkeys(map(format_room, least))
        yield from within or _first(self._within(rooms))
        yield from self._updated_in_one_kernel(refusal.least_bytes)
        if not self._is_full(refusal):
            yield from self._in_microbatches()
        yield from _first(self._on_more_ranks(refusal))
        if not self._is_full(refusal):
            yield from _first(self._for_smaller_batches())

    def _within(self, rooms: Iterable[str]) -> Iterator[tuple[str, Plan]]:
        """Yield plans within other limits."""
        for room in rooms:
            more = replace(self.options, memory=room)
            plan = self._try(self.captured, self.mesh, more)
            if plan is not None:
                yield f"within {room}", plan

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

    def _updated_in_one_kernel(self, least: int) -> Iterator[tuple[str, Plan]]:
        """Yield a plan of an optimizer that allocates nothing, if that is too much."""
        fused = IN_ONE_KERNEL.get(self.options.optimizer)
        if fused is None or least - self._update_bytes > self._limit_bytes:
            return
        options = replace(self.options, optimizer=fused)
        plan = self._try(self.captured, self.mesh, options)
        if plan is not None:
            yield f"with optimizer={fused!r}, as torch makes it with fused=True", plan

    @property
    def _update_bytes(self) -> int:
        """What an update allocates at the most: where every rank updates the whole."""
        program = self.captured.program
        trained = program.trained
        sizes = [
            type_of(Value(node, 0)).num_bytes
            for node, role in program.placeholders()
            if role.name in trained
        ]
        device = load_hardware(self.options.hardware).device.kind
        return update_bytes(self.options.optimizer, sizes, device)

    def _in_microbatches(self) -> Iterator[tuple[str, Plan]]:
        """Yield a plan of a batch in parts, if one piece was asked for."""
        if self.options.microbatches != "auto":
            more = replace(self.options, microbatches="auto")
            plan = self._try(self.captured, self.mesh, more)
            if plan is not None:
                ending = "es" if plan.microbatches > 1 else ""
                yield f"in {plan.microbatches} microbatch{ending}", plan

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
