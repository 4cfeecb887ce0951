"""What a stage that was planned adds to the step of a pipeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from partita.compiler.cost.memory import END_OF_MICROBATCH, GIVE_GRADIENTS, timeline
from partita.compiler.cost.timeline import Timeline
from partita.compiler.ir.program import InputKind, OutputKind, Program
from partita.compiler.ir.sbp import Placement
from partita.compiler.plan.beside import completed_beside, ends_in_sum
from partita.compiler.plan.document import Document
from partita.compiler.plan.emitted import completing_units
from partita.compiler.schedules.schedule import Work
from partita.compiler.simulate.stage_items import Closed, stage_items

CLOSING = (Work.BACKWARD, Work.BACKWARD_WEIGHT)
"""What a last backward may be."""

_AHEAD = "microbatches ahead"


@dataclass(frozen=True, slots=True)
class ClosingCost:
    """The last backward of a stage.

    Attributes:
        seconds: until the rank is done with it.
        waited_s: how long sums that began in it still pass then.
        after_s: what follows.
    """

    seconds: float
    waited_s: float
    after_s: float

    @staticmethod
    def of(closed: Closed) -> ClosingCost:
        """Return the figures of a last backward."""
        after_s = sum(item.seconds for item in closed.after)
        return ClosingCost(closed.played.free_s, closed.waited_s, after_s)


@dataclass(frozen=True)
class StageCost:
    """The figures of a planned stage, and how its ends lie.

    Attributes:
        seconds: what an action takes, by its work.
        before_s: what precedes the microbatches, once.
        after_s: what follows them, the optimizer's step among it.
        closing: the last backward, by its work.
        held: what a rank holds.
        entering: by input of the program, the placement in which it enters.
        leaving: by output, that in which it leaves; ``None`` where nothing does.
    """

    seconds: Mapping[Work, float]
    before_s: float
    after_s: float
    closing: Mapping[Work, ClosingCost]
    held: StageHeld
    entering: tuple[Placement, ...]
    leaving: tuple[Placement | None, ...]

    @staticmethod
    def of(document: Document, program: Program) -> StageCost:
        """Return the figures of a plan of one stage, whose program is given."""
        items = stage_items(document)
        entering: dict[tuple[InputKind, str], Placement] = {}
        for node in document.nodes.values():
            (placement, *_) = node.signature.results or (None,)
            if node.role is not None and placement is not None:
                entering[node.role.kind, node.role.name] = placement
        leaving: dict[tuple[OutputKind, str], Placement | None] = {
            (output.kind, output.name): output.placement for output in document.outputs
        }
        return StageCost(
            items.seconds,
            sum(item.seconds for item in items.before),
            sum(item.seconds for item in items.after),
            {work: ClosingCost.of(items.closed(work)) for work in CLOSING},
            StageHeld.of(document),
            tuple(entering[role.kind, role.name] for role in program.inputs),
            tuple(leaving[role.kind, role.name] for role in program.outputs),
        )

    def bytes(self, live: int) -> int:
        """Return what a rank holds at most, of so many microbatches."""
        return self.held.bytes(live)

    def busy_s(self, count: int) -> float:
        """Return how long a step of so many microbatches keeps a rank busy."""
        before_s = self.before_s + count * self.seconds[Work.FORWARD]
        closing = self.closing[Work.BACKWARD]
        backward_s = (count - 1) * self.seconds[Work.BACKWARD] + closing.seconds
        return before_s + backward_s + closing.after_s


@dataclass(frozen=True)
class StageHeld:
    """What a rank of a planned stage holds.

    Attributes:
        peak_bytes: at most, of one microbatch at a time.
        saved_bytes: what each microbatch more adds to that.
        closing_bytes: at most in the last backward, as ``closing_bytes`` says.
        at_peak: what the peak is made of, by category.
        at_rest: what stays from one microbatch to the next, by category.
    """

    peak_bytes: int
    saved_bytes: int
    closing_bytes: int
    at_peak: Mapping[str, int]
    at_rest: Mapping[str, int]

    @staticmethod
    def of(document: Document, held: Timeline | None = None) -> StageHeld:
        """Return what is held under a plan of one stage.

        ``held`` is the memory over its step, where it is known.
        """
        held = held or timeline(document)
        closing = closing_bytes(document, held)
        return StageHeld(
            held.peak_bytes, held.saved_bytes, closing, held.at_peak, _at_rest(held)
        )

    def bytes(self, live: int) -> int:
        """Return what a rank holds at most, of so many microbatches."""
        several = self.peak_bytes + (live - 1) * self.saved_bytes
        return max(several, self.closing_bytes)

    def by_part(self, live: int) -> dict[str, int]:
        """Return the same by category, what comes on top of the peak by its cause."""
        ahead = (live - 1) * self.saved_bytes
        sent = self.bytes(live) - self.peak_bytes - ahead
        more = {_AHEAD: ahead, "sums on their way": sent}
        return {**self.at_peak, **{cause: size for cause, size in more.items() if size}}

    def resting(self, live: int) -> dict[str, int]:
        """Return what is held while another stage of the rank runs, by category."""
        ahead = live * self.saved_bytes
        return {**self.at_rest, **({_AHEAD: ahead} if ahead else {})}


def most_together(stages: Sequence[tuple[StageHeld, int]]) -> dict[str, int]:
    """Return the most that a rank of several stages holds, by category.

    One of them runs at a time; of the others is there what stays, and what their
    forwards have saved of as many microbatches as are stated with each. It is no more
    than if all ran at once.
    """
    found: list[Counter[str]] = []
    at_once: Counter[str] = Counter()
    for running, (held, live) in enumerate(stages):
        parts = Counter(held.by_part(live))
        at_once.update(parts)
        for number, (other, waiting) in enumerate(stages):
            if number != running:
                parts.update(other.resting(waiting))
        found.append(parts)
    return dict(min(max(found, key=Counter.total), at_once, key=Counter.total))


def _at_rest(held: Timeline) -> dict[str, int]:
    """Return what a microbatch leaves behind, and what stays anyway, by category."""
    has_several = END_OF_MICROBATCH in held.moments
    end = held.moments.index(END_OF_MICROBATCH if has_several else GIVE_GRADIENTS)
    found: Counter[str] = Counter()
    for each in held.held:
        if each.first < end <= each.last and each.num_bytes:
            found[str(each.category)] += each.num_bytes
    return dict(found)


def peak_bytes(document: Document, live: int) -> int:
    """Return what a rank of a stage holds at most, with so many microbatches."""
    return StageHeld.of(document).bytes(live)


def closing_bytes(document: Document, held: Timeline) -> int:
    """Return what a rank holds at most in a last backward in which gradients are sent.

    What is sent of a sum is a copy of it, which is let go of then; so there is one copy
    at a time beside what the backward holds. What comes of other messages is there
    beside what was sent until the backward is done. Where nothing is sent it is what
    the backward holds.
    """
    units = completing_units(document)
    begun = {units[at][0].key: units[at][0] for at in completed_beside(document)}
    end = len(held.moments)
    if END_OF_MICROBATCH in held.moments:
        end = held.moments.index(END_OF_MICROBATCH)
    copies: dict[str, int] = {}
    for each in held.held:
        if each.first > end and each.key in begun:
            copies[each.key] = copies.get(each.key, 0) + each.num_bytes
    lasting = {
        key: held.messages.get(key, 0)
        for key, boxing in begun.items()
        if not ends_in_sum(boxing)
    }
    most = max(held.bytes_at[:end], default=0)
    passing = (size - lasting.get(key, 0) for key, size in copies.items())
    return most + max(passing, default=0) + sum(lasting.values())
