"""Simulated steps: bubbles by formula and as published, links that carry one thing."""

from __future__ import annotations

import pytest

from partita.compiler.errors import BadPlan
from partita.compiler.schedules.make import make_schedule
from partita.compiler.schedules.schedule import Action, Schedule, Work
from partita.compiler.simulate.pipeline import Run, simulate_pipeline


def run(
    name: str,
    ranks: int,
    microbatches: int,
    figures: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 0.0),
    virtual: int = 1,
) -> Run:
    """Simulate equal stages: forward, backward of inputs, of weights, a hop."""
    forward, inputs, weights, hop = figures
    takes = {
        Work.FORWARD: forward,
        Work.BACKWARD: inputs + weights,
        Work.BACKWARD_INPUT: inputs,
        Work.BACKWARD_WEIGHT: weights,
    }
    made = make_schedule(name, ranks, microbatches, virtual)
    return simulate_pipeline(
        made, lambda action: takes[action.work] / virtual, lambda _from, _to: hop
    )


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("p", "m"), [(4, 4), (4, 8), (8, 64), (1, 3), (3, 1)])
def test_bubble_of_plain_schedules(name: str, p: int, m: int) -> None:
    # Huang et al., NeurIPS 2019, section 2.3; Narayanan et al., SC 2021, section 2.2.1
    assert run(name, p, m).bubble == pytest.approx((p - 1) / (m + p - 1), abs=1e-12)


@pytest.mark.parametrize(("p", "m", "v"), [(4, 8, 2), (8, 16, 4), (2, 2, 3)])
def test_bubble_of_interleaved_stages(p: int, m: int, v: int) -> None:
    # Narayanan et al., SC 2021, section 2.2.2: of the ideal time (p - 1) / (v m)
    wanted = (p - 1) / (v * m + p - 1)
    assert run("interleaved", p, m, virtual=v).bubble == pytest.approx(
        wanted, abs=1e-12
    )


@pytest.mark.parametrize(("p", "m"), [(4, 8), (8, 16), (2, 5)])
def test_bubble_of_split_backwards(p: int, m: int) -> None:
    # Qi et al., ICLR 2024, table 1: (p - 1) (TF + TB - TW)
    found = run("zero-bubble", p, m, (3.0, 3.0, 2.0, 0.0))
    assert found.seconds - m * 8 == pytest.approx((p - 1) * 4)


# Qi et al., "Zero Bubble Pipeline Parallelism", tables 5 and 6: milliseconds of TF, TB,
# TW and a hop as profiled, and the authors' own simulation of them.
PUBLISHED = [
    ("1f1b", 8, 24, (29.718, 29.444, 19.927, 0.527), 0.2347),
    ("1f1b", 16, 48, (11.347, 11.248, 8.132, 0.377), 0.2552),
    ("zero-bubble", 8, 24, (29.718, 29.444, 19.927, 0.527), 0.1323),
    ("zero-bubble", 16, 48, (11.347, 11.248, 8.132, 0.377), 0.1397),
    ("zero-bubble", 32, 128, (10.408, 10.204, 7.703, 0.408), 0.1106),
]


@pytest.mark.parametrize(("name", "p", "m", "figures", "rate"), PUBLISHED)
def test_bubbles_as_published(
    name: str,
    p: int,
    m: int,
    figures: tuple[float, float, float, float],
    rate: float,
) -> None:
    found = run(name, p, m, figures)
    busy = m * sum(figures[:3])
    assert (found.seconds - busy) / found.seconds == pytest.approx(rate, abs=1e-4)


def test_a_link_carries_one_thing_after_another() -> None:
    found = run("gpipe", 2, 3, (1.0, 1.0, 0.0, 5.0))
    forward = [e for e in found.transfers if e.action.work is Work.FORWARD]
    assert [(e.start_s, e.end_s, e.to) for e in forward] == [
        (1.0, 6.0, 1),
        (6.0, 11.0, 1),
        (11.0, 16.0, 1),
    ]
    assert [event.start_s for event in found.compute[1][:3]] == [6.0, 11.0, 16.0]


def test_what_stays_on_its_rank_is_carried_by_no_link() -> None:
    found = run("interleaved", 1, 2, (1.0, 1.0, 1.0, 5.0), virtual=2)
    assert found.transfers == ()
    assert found.bubble == pytest.approx(0.0)


def test_busy_and_idle_time_make_the_step() -> None:
    found = run("1f1b", 3, 4)
    assert found.busy_s == (12.0, 12.0, 12.0)
    assert found.seconds == 18.0


def test_a_schedule_that_waits_for_ever_is_refused() -> None:
    rows = (tuple(map(Action.parse, ("0B0", "0F0"))),)
    with pytest.raises(BadPlan, match="waits for ever: 0B0 needs 0F0"):
        simulate_pipeline(
            Schedule("odd", 1, (0,), rows, (1,)), lambda _: 1.0, lambda _from, _to: 0.0
        )
