"""A plan's step as a timetable: what stands on which track of which row, and when.

A row is the ranks of one place in the pipeline, which do the same at the same time. Its
tracks are what it computes, one for each mesh axis it communicates on, and one for each
row that it sends to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from partita.compiler.plan.document import Document
from partita.compiler.plan.stages import stage_documents
from partita.compiler.schedules.schedule import Action, Work, needs
from partita.compiler.simulate.item import Item
from partita.compiler.simulate.memory import StageMemory, stage_memory
from partita.compiler.simulate.pipeline import Event
from partita.compiler.simulate.plan import Once, SimulatedStep, simulate_step

COMPUTE = "compute"
"""The track of what a row computes."""

TO_ROW = "to row "
"""What the tracks of sends begin with, before the row that they are for."""


@dataclass(frozen=True, slots=True)
class Span:
    """Something from when to when, on a track of a row.

    ``is_whole`` is an action, which the items stand in that it is made of;
    ``is_beside`` a send or a message, while which the row does other things.
    """

    row: int
    track: str
    name: str
    start_s: float
    end_s: float
    bytes: float = 0
    is_whole: bool = False
    is_beside: bool = False

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return self.end_s - self.start_s

    @property
    def is_send(self) -> bool:
        """Whether it goes to another row."""
        return self.is_beside and self.track.startswith(TO_ROW)


@dataclass(frozen=True, slots=True)
class Sample:
    """What a rank of a row holds from a time on."""

    time_s: float
    bytes: int


@dataclass(frozen=True, slots=True)
class LinkUse:
    """What a row's ranks do on one track of communication in a step."""

    row: int
    track: str
    times: int
    seconds: float
    bytes: float


@dataclass(frozen=True)
class Timetable:
    """A step.

    Attributes:
        step: as it was simulated.
        spans: an action before its items, else in no order.
        arrows: from a send to the action that uses what comes.
        memory: by row, in the order of time.
    """

    step: SimulatedStep
    spans: tuple[Span, ...]
    arrows: tuple[tuple[Span, Span], ...]
    memory: tuple[tuple[Sample, ...], ...]

    def peak(self, row: int) -> Sample:
        """Return when a rank of a row first holds most, and how much."""
        return max(self.memory[row], key=lambda sample: (sample.bytes, -sample.time_s))

    @cached_property
    def links(self) -> tuple[LinkUse, ...]:
        """What is sent by each row on each of its tracks."""
        found: dict[tuple[int, str], list[Span]] = defaultdict(list)
        for span in self.spans:
            if span.track != COMPUTE:
                found[span.row, span.track].append(span)
        return tuple(
            LinkUse(
                row,
                track,
                len(spans),
                sum(span.seconds for span in spans),
                sum(span.bytes for span in spans),
            )
            for (row, track), spans in sorted(found.items())
        )

    def compute_s(self, row: int) -> float:
        """Return how long a row computes."""
        return sum(span.seconds for span in self._items(row) if span.track == COMPUTE)

    def communication_s(self, row: int) -> float:
        """Return how long a row communicates while it does nothing else."""
        return sum(span.seconds for span in self._items(row) if span.track != COMPUTE)

    def _items(self, row: int) -> Iterator[Span]:
        """Yield what a row does one after another; what it sends goes beside that."""
        for span in self.spans:
            if span.row == row and not (span.is_whole or span.is_beside):
                yield span


def make_timetable(document: Document) -> Timetable:
    """Return the step of a plan."""
    step = simulate_step(document)
    memories = tuple(stage_memory(part) for part in stage_documents(document))
    rows = [_Row(step, memories, row) for row in range(len(step.schedule.rows))]
    for row in rows:
        row.fill()
    sends = [_sent(step, event) for event in step.run.transfers]
    return Timetable(
        step,
        (*(span for row in rows for span in row.spans), *sends),
        tuple(_arrows(step, sends, rows)),
        tuple(tuple(row.samples) for row in rows),
    )


def _sent(step: SimulatedStep, event: Event) -> Span:
    way = event.action.stage, event.action.work is Work.FORWARD
    return Span(
        event.rank,
        f"{TO_ROW}{event.to}",
        f"send {event.action}",
        event.start_s,
        event.end_s,
        step.hop_bytes.get(way, 0),
        is_beside=True,
    )


def _arrows(
    step: SimulatedStep, sends: Sequence[Span], rows: Sequence[_Row]
) -> Iterator[tuple[Span, Span]]:
    """Yield each send with the action that waits for it."""
    of_action = {action: span for row in rows for action, span in row.actions.items()}
    used_by = {
        made: action
        for action in of_action
        for made in needs(step.schedule, action)
        if made.stage != action.stage
    }
    for event, send in zip(step.run.transfers, sends, strict=True):
        if event.action in used_by:
            yield send, of_action[used_by[event.action]]


class _Row:
    """The spans of one row, and what a rank of it holds, as they come."""

    def __init__(
        self, step: SimulatedStep, memories: Sequence[StageMemory], row: int
    ) -> None:
        self.step = step
        self.row = row
        own = (s for s, at in enumerate(step.schedule.rank_of) if at == row)
        self.memories = {stage: memories[stage] for stage in own}
        self.live = dict.fromkeys(self.memories, 0)
        self.left = dict.fromkeys(self.memories, 0)
        self.spans: list[Span] = []
        self.actions: dict[Action, Span] = {}
        self.samples: list[Sample] = []

    def fill(self) -> None:
        self._sample(0.0, self._resting())
        self._once(self.step.before[self.row], 0.0)
        for event in self.step.run.compute[self.row]:
            self._act(event)
        end = self._once(self.step.after[self.row], self.step.ends[self.row])
        self._sample(end, self._resting())

    def _act(self, event: Event) -> None:
        action = event.action
        stage, memory = action.stage, self.memories[action.stage]
        number = self.row, COMPUTE, str(action)
        whole = Span(*number, event.start_s, event.end_s, is_whole=True)
        self.spans.append(whole)
        self.actions[action] = whole
        is_new = action.work is Work.FORWARD
        others = memory.saved * (self.live[stage] - (not is_new))
        elsewhere = self._resting() - self._resting_of(stage)
        items, played = self.step.played(action)
        for item, (start, end) in zip(items, played.times, strict=True):
            start, end = event.start_s + start, event.start_s + end
            if not item.is_beside:  # it holds nothing that the next does not
                start, end = min(start, event.end_s), min(end, event.end_s)
                self._sample(start, elsewhere + others + memory.of(item))
            self._item(item, start, end)
        self.live[stage] += is_new - action.work.frees
        if action.work.frees:
            self.left[stage] = memory.left
        self._sample(event.end_s, self._resting())

    def _once(self, things: Iterable[Once], now: float) -> float:
        for once in things:
            item, stage = once.item, once.stage
            if once.sender is None:
                elsewhere = self._resting() - self._resting_of(stage)
                self._sample(now, elsewhere + self.memories[stage].of(item))
                now = self._item(item, now, now + item.seconds)
            else:
                row = self.step.schedule.rank_of[once.sender]
                end = now + item.seconds
                now = self._item(item, now, end, track=f"from row {row}")
        return now

    def _item(
        self, item: Item, start: float, end: float, track: str | None = None
    ) -> float:
        """Note an item that takes time; return when it ends."""
        if item.seconds:
            track = track or (f"axis {item.axis}" if item.axis else COMPUTE)
            where = self.row, track, item.name, start, end, item.bytes
            self.spans.append(Span(*where, is_beside=item.is_beside))
        return end

    def _resting_of(self, stage: int) -> int:
        """Return what a stage holds while none of its actions runs."""
        memory = self.memories[stage]
        return memory.state + self.left[stage] + memory.saved * self.live[stage]

    def _resting(self) -> int:
        return sum(map(self._resting_of, self.memories))

    def _sample(self, time_s: float, num_bytes: int) -> None:
        if not self.samples or self.samples[-1].bytes != num_bytes:
            self.samples.append(Sample(time_s, num_bytes))
