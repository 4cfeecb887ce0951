"""What is drawn is what the simulation and the formulas say."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch

from partita.compiler.cost.timeline import Category
from partita.compiler.plan.plan import Plan
from partita.compiler.simulate.timetable import Timetable, make_timetable
from partita.page.memory import memory_curves
from partita.plots.draw import draw_memory, draw_scaling, draw_timeline
from partita.plots.scaling import Scaling


@pytest.fixture
def timetable(any_plan: Plan) -> Timetable:
    return make_timetable(any_plan)


def bars(axes: Axes) -> dict[str, list[tuple[float, float]]]:
    """Return from when to when bars stand, by the name of what is drawn at once."""
    found: dict[str, list[tuple[float, float]]] = {}
    for drawn in axes.collections:
        assert isinstance(drawn, PolyCollection)
        sides = [np.asarray(path.vertices)[:, 0] for path in drawn.get_paths()]
        found[str(drawn.get_gid())] = [(float(x.min()), float(x.max())) for x in sides]
    return found


def test_memory_is_stacked_by_category(any_plan: Plan, timetable: Timetable) -> None:
    curves = memory_curves(any_plan, timetable.step)
    figure = draw_memory(any_plan, timetable)
    assert len(figure.axes) == len(curves)
    for row, (axes, curve) in enumerate(zip(figure.axes, curves, strict=True)):
        drawn = {str(p.get_gid()): p for p in axes.patches if isinstance(p, StepPatch)}
        below = np.zeros(len(curve["times"]))
        for number, category in enumerate(Category):
            held = np.array(curve["bytes"][number])
            patch = drawn.pop(f"{row}/{category}", None)
            assert patch is not None or not held.any()
            if patch is not None:
                values, edges, baseline = patch.get_data()
                assert np.array_equal(edges[:-1], curve["times"])
                assert edges[-1] == pytest.approx(timetable.step.seconds)
                assert np.array_equal(values, below + held)
                assert np.array_equal(np.asarray(baseline), below)
            below += held
        assert drawn == {}
        assert below.max() == timetable.peak(row).bytes


def test_timeline_has_every_action_and_item(any_plan: Plan) -> None:
    timetable = make_timetable(any_plan)
    (axes,) = draw_timeline(any_plan, timetable).axes
    wanted: dict[str, list[tuple[float, float]]] = defaultdict(list)
    names = {"F": "forward", "B": "backward", "I": "backward to inputs"}
    names["W"] = "backward to weights"
    for span in timetable.spans:
        what = {"to": "sends", "from": "receives"}.get(span.track[:-6], span.track)
        if span.is_whole:
            what = names[span.name.strip("0123456789")]
        lane = "" if span.is_whole else span.track
        wanted[f"{span.row}/{lane}/{what}"].append((span.start_s, span.end_s))
    drawn = bars(axes)
    assert set(drawn) == set(wanted)
    for name, spans in wanted.items():
        assert len(drawn[name]) == len(spans)
        assert np.allclose(sorted(drawn[name]), sorted(spans), rtol=1e-9, atol=0), name


def test_lanes_are_named_after_ranks_stages_and_tracks(any_plan: Plan) -> None:
    (axes,) = draw_timeline(any_plan, make_timetable(any_plan)).axes
    named = [label.get_text() for label in axes.get_yticklabels()]
    several = len(any_plan.stages) > 1
    assert ("ranks 2-3, stage 1" in named) == several
    assert ("to row 1" in named) == several
    assert ("ranks 0-1" in named) != several
    assert "axis dp" in named
    legend = draw_timeline(any_plan, make_timetable(any_plan)).legends[0]
    assert len({text.get_text() for text in legend.get_texts()}) == len(
        legend.get_texts()
    )


def test_scaling_draws_the_step_and_its_parts(any_plan: Plan) -> None:
    parts = {"compute": (1.0, 2.0, 4.0), "update": (0.5, 0.5, 0.5), "none": (0.0,) * 3}
    (axes,) = draw_scaling(any_plan, Scaling("batch", 8, (4, 8, 16), parts)).axes
    drawn = {str(line.get_gid()): line for line in axes.lines}
    assert set(drawn) == {"step", "compute", "update"}
    assert np.array_equal(drawn["step"].get_ydata(), [1.5, 2.5, 4.5])
    assert np.array_equal(drawn["compute"].get_ydata(), [1.0, 2.0, 4.0])
    assert np.array_equal(drawn["update"].get_xdata(), [4, 8, 16])
    assert drawn["step"].get_markevery() == [1]  # the plan's own batch
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["4", "8", "16"]


def test_titles_say_what_is_drawn(any_plan: Plan) -> None:
    def title(figure: Figure) -> str:
        return figure.get_suptitle()

    timetable = make_timetable(any_plan)
    start = f"Sequential on {any_plan.mesh}, cpu-gloo: "
    assert title(draw_memory(any_plan, timetable)).startswith(start + "memory")
    assert title(draw_timeline(any_plan, timetable)).startswith(start + "timeline")
