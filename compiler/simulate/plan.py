"""A plan's step as its schedule runs it: every action of every rank, with its time.

A plan of one stage is a pipeline of one: its microbatches go forward and backward one
after another. What a rank does once stands before its first action and behind its last;
but where there are several stages, the first sends gradients in its last backward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from partita.compiler.ir.program import Phase
from partita.compiler.plan.document import Document
from partita.compiler.plan.stage_records import Transfer, TransferKind
from partita.compiler.plan.stages import read_schedule, stage_documents
from partita.compiler.schedules.schedule import Action, Schedule, Work
from partita.compiler.simulate.beside import Played
from partita.compiler.simulate.item import Item
from partita.compiler.simulate.pipeline import Run, simulate_pipeline
from partita.compiler.simulate.stage_items import StageItems, stage_items

Way = tuple[int, bool]
"""The stage that sends, and whether it sends forward."""


@dataclass(frozen=True)
class Once:
    """What a row does once: an item of a stage, or, with ``sender``, what it gets."""

    stage: int
    item: Item
    sender: int | None = None


@dataclass(frozen=True)
class SimulatedStep:
    """The step of a plan.

    Attributes:
        schedule: what the rows do.
        stages: what the actions of each stage are made of.
        run: compute and transfers of the microbatches.
        before: by row, what it does before its first action.
        after: by row, what follows all microbatches there.
        hop_bytes: what a microbatch hands on.
    """

    schedule: Schedule
    stages: tuple[StageItems, ...]
    run: Run
    before: tuple[tuple[Once, ...], ...]
    after: tuple[tuple[Once, ...], ...]
    hop_bytes: Mapping[Way, int]

    def played(self, action: Action) -> tuple[Sequence[Item], Played]:
        """Return what an action is made of, and when that begins and ends in it."""
        stage = self.stages[action.stage]
        if action in closing_of(self.schedule):
            closed = stage.closed(action.work)
            return closed.items, closed.played
        return stage.by_work[action.work], stage.played[action.work]

    @cached_property
    def begins(self) -> tuple[float, ...]:
        """When the first action of each row could begin."""
        return _totals(self.before)

    @cached_property
    def once(self) -> tuple[float, ...]:
        """By row, the seconds of what follows all microbatches there."""
        return _totals(self.after)

    @cached_property
    def ends(self) -> tuple[float, ...]:
        """When the last action of each row ends."""
        return tuple(self.run.end_of(row) for row in range(len(self.begins)))

    @property
    def seconds(self) -> float:
        """From the first action to the end of the last rank's work."""
        return max(end + once for end, once in zip(self.ends, self.once, strict=True))

    @property
    def busy_s(self) -> tuple[float, ...]:
        """How long each row works: computes, communicates, does what it does once."""
        parts = zip(self.run.busy_s, self.begins, self.once, strict=True)
        return tuple(sum(part) for part in parts)

    @property
    def bubble(self) -> float:
        """The part of the ranks' time in which they wait for others."""
        whole = len(self.busy_s) * self.seconds
        return max(0.0, 1 - sum(self.busy_s) / whole) if whole else 0.0


def simulate_step(document: Document) -> SimulatedStep:
    """Return the step of a plan."""
    stages = [stage_items(part) for part in stage_documents(document)]
    return step_of(schedule_of(document), stages, document.transfers)


def step_of(
    schedule: Schedule, stages: Sequence[StageItems], transfers: Sequence[Transfer]
) -> SimulatedStep:
    """Return the step of a schedule, given what each stage does and hands others.

    What a stage sends to several others counts on the link to its neighbour. State that
    is shared and parts of gradients that go home are counted once, where they end.
    """
    before: list[list[Once]] = [[] for _ in schedule.rows]
    handed: list[list[Once]] = [[] for _ in schedule.rows]
    for number, stage in enumerate(stages):
        row = schedule.rank_of[number]
        before[row] += [Once(number, item) for item in stage.before]
    hops: dict[Way, float] = {}
    hop_bytes: dict[Way, int] = {}
    for transfer in transfers:
        if transfer.kind.is_of_microbatch:
            way = transfer.sender, transfer.kind is TransferKind.FORWARD
            hops[way] = hops.get(way, 0.0) + transfer.seconds
            hop_bytes[way] = hop_bytes.get(way, 0) + transfer.bytes
            continue
        row = schedule.rank_of[transfer.receiver]
        if transfer.kind is TransferKind.STATE:
            before[row].append(_handed_over(transfer))
        else:
            handed[row].append(_handed_over(transfer))
    closing = closing_of(schedule)

    def seconds(action: Action) -> float:
        stage = stages[action.stage]
        if action in closing:
            return stage.closed(action.work).played.free_s
        return stage.seconds[action.work]

    def hop_seconds(stage: int, to: int) -> float:
        return hops.get((stage, to > stage), 0.0)

    first = tuple(map(tuple, before))
    run = simulate_pipeline(schedule, seconds, hop_seconds, _totals(first))
    last = tuple(
        tuple(_with_handed(_after(row, run, schedule, stages), handed[row]))
        for row in range(len(schedule.rows))
    )
    return SimulatedStep(schedule, tuple(stages), run, first, last, hop_bytes)


def closing_of(schedule: Schedule) -> frozenset[Action]:
    """Return the actions in which gradients begin to be summed: none of one stage."""
    return schedule.closing if schedule.num_stages > 1 else frozenset()


def _after(
    number: int, run: Run, schedule: Schedule, stages: Sequence[StageItems]
) -> list[Once]:
    """Return what follows the actions of a row, sums that still pass waited for."""
    now = run.end_of(number)
    closing = closing_of(schedule)
    last = {e.action.stage: e for e in run.compute[number] if e.action in closing}
    found: list[Once] = []
    for stage, row in enumerate(schedule.rank_of):
        if row != number:
            continue
        after = stages[stage].after
        if stage in last:
            closed = stages[stage].closed(last[stage].action.work)
            after, there_s = closed.after, last[stage].end_s + closed.waited_s
            if there_s > now:
                name = f"wait for sums of stage {stage}"
                item = Item(name, name, Phase.BACKWARD_WEIGHT, there_s - now)
                found.append(Once(stage, item))
                now = there_s
        found += [Once(stage, item) for item in after]
        now += sum(item.seconds for item in after)
    return found


def _with_handed(after: list[Once], handed: Sequence[Once]) -> list[Once]:
    """Return what follows with gradients that come, for which the optimizer waits."""
    done = [once.item.phase is Phase.UPDATE for once in after]
    at = done.index(True) if True in done else len(done)
    return [*after[:at], *handed[::-1], *after[at:]]


def _totals(rows: tuple[tuple[Once, ...], ...]) -> tuple[float, ...]:
    return tuple(sum(once.item.seconds for once in row) for row in rows)


def _handed_over(transfer: Transfer) -> Once:
    name = f"{transfer.kind} {transfer.name} from stage {transfer.sender}"
    seconds, num_bytes = transfer.seconds, transfer.bytes
    item = Item(transfer.name, name, Phase.BACKWARD_WEIGHT, seconds, None, num_bytes)
    return Once(transfer.receiver, item, transfer.sender)


def schedule_of(document: Document) -> Schedule:
    """Return the schedule of a plan; of one stage that states none, the plain one."""
    stated = read_schedule(document)
    if stated.rows:
        return stated
    works = [Work.FORWARD]
    if any(node.phase is not Phase.FORWARD for node in document.nodes.values()):
        works.append(Work.BACKWARD)
    every = range(document.microbatches)
    row = tuple(Action(0, work, number) for number in every for work in works)
    return Schedule(stated.name, document.microbatches, (0,), (row,), (1,))


def seconds_by_part(document: Document, step: SimulatedStep) -> Mapping[str, float]:
    """Return what the step of the slowest rank is made of."""
    rows = range(len(step.ends))
    row = max(rows, key=lambda r: step.ends[r] + step.once[r])
    busy, begin = step.run.busy_s[row], step.begins[row]
    return {
        "before the microbatches": begin,
        "compute of stages": busy,
        "waiting for stages": step.ends[row] - busy - begin,
        "after the microbatches": step.once[row],
    }
