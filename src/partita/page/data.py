"""What the page is given of a plan: the document, its step simulated, its pins.

All of it follows from the plan. Tables that would name an item many times hold its
number instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from partita.compiler.cost.timeline import Category
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.plan.asked import find_asked
from partita.compiler.plan.buckets import sending, steps_alone
from partita.compiler.plan.document import Document
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.stages import stage_documents
from partita.compiler.plan.uses import times_in_step
from partita.compiler.simulate.item import Item
from partita.compiler.simulate.plan import Once
from partita.compiler.simulate.row_figures import row_figures
from partita.compiler.simulate.timetable import make_timetable
from partita.page.formulas import formulas_data
from partita.page.memory import memory_curves

Json = dict[str, Any]


def page_data(plan: Plan) -> Json:
    """Return what the page shows of a plan, as plain JSON values."""
    return {
        "plan": plan.to_dict(),
        "asked": _asked(plan),
        "formulas": formulas_data(plan),
        "step": step_data(plan),
    }


def _asked(plan: Plan) -> dict[str, str]:
    """Return what pins say of nodes, by key, as ``explain`` prints it."""
    return {key: str(asked) for key, asked in find_asked(plan).items()}


def step_data(document: Document) -> Json:
    """Return the simulated step of a plan.

    ``items`` are ``[key, name, seconds, axis, bytes]``; ``works`` names those of an
    action of a stage, in order, ``times`` their ``[start, end]`` in it; ``actions`` are
    ``[row, stage, work, microbatch, start]``, ``once`` ``[row, item, start]``,
    ``sends`` ``[row, to, name, start, seconds, bytes]``; ``sent`` has what passes on
    the axes in a step, ``[axis, kind, times, bytes, seconds]``.
    """
    timetable = make_timetable(document)
    step = timetable.step
    items = _Numbered()
    ways = [
        (f"{stage}{work}", of_stage.by_work[work], of_stage.played[work].times)
        for stage, of_stage in enumerate(step.stages)
        for work in sorted({a.work for _, a in step.schedule.actions()})
        if work in of_stage.by_work
    ]
    once = [
        [row, items.number(item.item), start]
        for row in range(len(step.ends))
        for item, start in (
            *_in_turn(step.before[row], 0.0),
            *_in_turn(step.after[row], step.ends[row]),
        )
        if item.item.seconds
    ]
    return {
        "seconds": step.seconds,
        "bubble": step.bubble,
        "rows": row_figures(document, timetable),
        "works": {name: [*map(items.number, own)] for name, own, _ in ways},
        "times": {name: times for name, _, times in ways},
        "actions": [
            [e.rank, e.action.stage, e.action.work, e.action.microbatch, e.start_s]
            for row in step.run.compute
            for e in row
        ],
        "once": once,
        "sends": [
            [s.row, s.track, s.name, s.start_s, s.seconds, round(s.bytes)]
            for s in timetable.spans
            if s.is_send
        ],
        "links": [
            [link.row, link.track, link.times, link.seconds, round(link.bytes)]
            for link in timetable.links
        ],
        "sent": _sent(document),
        "categories": [category.value for category in Category],
        "memory": memory_curves(document, step),
        "items": items.rows,
    }


def _sent(document: Document) -> list[list[Any]]:
    found: dict[tuple[str, str], list[float]] = {}

    def add(axis: str, kind: str, *figures: float) -> None:
        known = found.get((axis, kind), [0, 0, 0.0])
        pairs = zip(known, figures, strict=True)
        found[axis, kind] = [old + new for old, new in pairs]

    hardware = load_hardware(document.hardware)
    for part in stage_documents(document):
        for boxing, step in steps_alone(part):
            if step.bytes:
                times = times_in_step(boxing, part.microbatches)
                add(step.axis, step.kind, times, step.bytes, step.seconds)
        for sent in sending(part):
            seconds = sent.seconds(hardware)
            add(sent.axis, sent.kind, sent.times, sent.bytes(hardware), seconds)
    return [[*names, *figures] for names, figures in found.items()]


class _Numbered:
    """Items, each once, as rows of a table."""

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self._numbers: dict[Item, int] = {}

    def number(self, item: Item) -> int:
        if item not in self._numbers:
            self._numbers[item] = len(self.rows)
            row = [item.key, item.name, item.seconds, item.axis, round(item.bytes)]
            self.rows.append(row)
        return self._numbers[item]


def _in_turn(things: Iterable[Once], now: float) -> Iterable[tuple[Once, float]]:
    """Yield what is done one after another, and when it starts."""
    for once in things:
        yield once, now
        now += once.item.seconds
