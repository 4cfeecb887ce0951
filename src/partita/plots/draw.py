"""Draw memory, timelines and scaling curves with matplotlib.

Everything drawn carries its name in ``gid``, which SVG files keep. Figures stand on
their own, without pyplot: no window, nothing shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, MultipleLocator

from partita.compiler.cost.timeline import Category
from partita.compiler.plan.document import Document
from partita.compiler.plan.stages import mesh_text
from partita.compiler.plan.units import format_bytes, printable
from partita.compiler.schedules.schedule import Work
from partita.compiler.simulate.timetable import COMPUTE, Timetable
from partita.page.memory import memory_curves
from partita.plots.scaling import Scaling

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, PANEL_HEIGHT, LANE_HEIGHT, MARGIN = 8.0, 2.4, 0.22, 1.2  # inches

_COLORS = (
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9",
    "#d55e00", "#f0e442", "#999999", "#332288",
)  # fmt: skip
# Okabe and Ito, colours that the colour-blind tell apart; grey and indigo are added.

_WORKS = {
    Work.FORWARD: "forward",
    Work.BACKWARD: "backward",
    Work.BACKWARD_INPUT: "backward to inputs",
    Work.BACKWARD_WEIGHT: "backward to weights",
}

_SENDS = {"to": "sends", "from": "receives"}
"""By how the track of a send begins."""


def draw_memory(document: Document, timetable: Timetable) -> Figure:
    """Draw what a rank of each row holds over the step, a panel a row."""
    curves = memory_curves(document, timetable.step)
    figure = Figure((WIDTH, MARGIN + PANEL_HEIGHT * len(curves)), layout="constrained")
    panels = figure.subplots(len(curves), sharex=True, squeeze=False)[:, 0]
    drawn = [
        any(any(curve["bytes"][number]) for curve in curves)
        for number in range(len(Category))
    ]
    for row, (curve, panel) in enumerate(zip(curves, panels, strict=True)):
        # The last sample stands at the row's end and lasts until the step's.
        edges = [*curve["times"], max(timetable.step.seconds, curve["times"][-1])]
        below = [0] * len(curve["times"])
        for number, category in enumerate(Category):
            top = [b + n for b, n in zip(below, curve["bytes"][number], strict=True)]
            if drawn[number]:
                panel.stairs(
                    top,
                    edges,
                    baseline=below,
                    fill=True,
                    color=_COLORS[number],
                    label=str(category),
                    gid=f"{row}/{category}",
                )
            below = top
        panel.set_title(_ranks(document, timetable, row), fontsize="small", loc="left")
        _count_bytes(panel, max(below))
        panel.set_xlim(0, timetable.step.seconds)
    _count_seconds(panels[-1])
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    _name(figure, document, "memory of a rank over a step")
    return figure


def draw_timeline(document: Document, timetable: Timetable) -> Figure:
    """Draw what each row of ranks does: its actions, and what stands on each track."""
    rows = range(len(timetable.step.ends))
    lanes = [(row, track) for row in rows for track in _tracks(timetable, row)]
    height = MARGIN + LANE_HEIGHT * len(lanes)
    figure = Figure((WIDTH, height), layout="constrained")
    axes = figure.subplots()
    shown: list[str] = []

    def bars(
        lane: tuple[int, str], what: str, spans: Sequence[tuple[float, float]]
    ) -> None:
        if not spans:
            return
        is_first = what not in shown
        if is_first:
            shown.append(what)
        axes.broken_barh(
            spans,
            (lanes.index(lane) + 0.1, 0.8),
            facecolors=_COLORS[shown.index(what) % len(_COLORS)],
            label=what if is_first else None,
            gid=f"{lane[0]}/{lane[1]}/{what}",
        )

    for row in rows:
        events = timetable.step.run.compute[row]
        for work, name in _WORKS.items():
            own = [event for event in events if event.action.work is work]
            bars((row, ""), name, [(e.start_s, e.end_s - e.start_s) for e in own])
        for track in _tracks(timetable, row)[1:]:
            own = [s for s in timetable.spans if (s.row, s.track) == (row, track)]
            spans = [(s.start_s, s.seconds) for s in own if not s.is_whole]
            bars((row, track), _SENDS.get(track.split()[0], track), spans)
    axes.set_yticks(
        [number + 0.5 for number in range(len(lanes))],
        [_ranks(document, timetable, row) if not t else t for row, t in lanes],
        fontsize="x-small",
    )
    axes.set_ylim(len(lanes), 0)
    axes.set_xlim(0, timetable.step.seconds)
    _count_seconds(axes)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    _name(figure, document, "timeline of a step")
    return figure


def draw_scaling(document: Document, scaling: Scaling) -> Figure:
    """Draw what a step takes, and its parts, over the sizes."""
    figure = Figure((WIDTH, MARGIN + 2 * PANEL_HEIGHT), layout="constrained")
    axes = figure.subplots()
    own = [scaling.sizes.index(scaling.own)] if scaling.own in scaling.sizes else []
    axes.plot(
        scaling.sizes,
        scaling.seconds,
        color="black",
        marker="o",
        markevery=own,
        label="step",
        gid="step",
    )
    for number, (part, seconds) in enumerate(scaling.parts.items()):
        if any(seconds):
            color = _COLORS[number % len(_COLORS)]
            axes.plot(scaling.sizes, seconds, "--", color=color, label=part, gid=part)
    axes.set_xscale("log", base=2)
    axes.set_xticks(scaling.sizes, [str(size) for size in scaling.sizes])
    axes.set_xlabel(f"{scaling.along}; the dot is the plan's own")
    axes.yaxis.set_major_formatter(EngFormatter("s"))
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    _name(figure, document, f"step over {scaling.along}")
    return figure


def _tracks(timetable: Timetable, row: int) -> list[str]:
    """Return the tracks of a row; the first, without a name, is that of its actions."""
    spans = (span for span in timetable.spans if span.row == row)
    found = sorted({span.track for span in spans if not span.is_whole} - {COMPUTE})
    return ["", COMPUTE, *found]


def _ranks(document: Document, timetable: Timetable, row: int) -> str:
    of_stage = timetable.step.schedule.rank_of
    stages = [number for number, at in enumerate(of_stage) if at == row]
    ranks = document.stages[stages[0]].ranks
    first, last = min(ranks), max(ranks)
    name = f"rank {first}" if first == last else f"ranks {first}-{last}"
    if len(of_stage) == 1:
        return name
    several = "stages" if len(stages) > 1 else "stage"
    return f"{name}, {several} {', '.join(map(str, stages))}"


def _count_seconds(axes: Axes) -> None:
    axes.xaxis.set_major_formatter(EngFormatter("s"))


def _count_bytes(axes: Axes, most: int) -> None:
    """Label the y axis at multiples of a power of two."""
    axes.yaxis.set_major_locator(MultipleLocator(2 ** ceil(log2(max(most, 1) / 4))))
    axes.yaxis.set_major_formatter(FuncFormatter(_bytes_at))


def _bytes_at(value: float, _: int | None) -> str:
    return format_bytes(round(value))


def _name(figure: Figure, document: Document, what: str) -> None:
    model, hardware = document.model.class_name, document.hardware.get("name", "")
    figure.suptitle(
        printable(f"{model} on {mesh_text(document)}, {hardware}: {what}"),
        fontsize="medium",
    )
