"""Timetables: what is on a track comes one after another, memory is what is held."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest
from tests.models.turned import turned

from partita.compiler.cost.memory import timeline
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.stages import stage_document, write_schedule
from partita.compiler.schedules.make import make_schedule
from partita.compiler.schedules.schedule import Work
from partita.compiler.schedules.transfers import with_transfers
from partita.compiler.simulate.memory import stage_memory
from partita.compiler.simulate.timetable import (
    COMPUTE,
    Span,
    Timetable,
    make_timetable,
)


def scheduled(plan: Plan, name: str, count: int) -> Timetable:
    made = with_transfers(make_schedule(name, 2, count))
    return make_timetable(replace(plan, schedule=write_schedule(made)))


def test_spans_of_one_stage_add_up_to_the_prediction(one_stage: Plan) -> None:
    table = make_timetable(one_stage)
    total = sum(span.seconds for span in table.spans if not span.is_whole)
    assert total == pytest.approx(one_stage.predicted.seconds, rel=1e-9)
    both = table.compute_s(0) + table.communication_s(0)
    assert both == pytest.approx(total)


def test_the_last_span_ends_with_the_step(plan: Plan) -> None:
    table = make_timetable(plan)
    end = max(span.end_s for span in table.spans)
    assert end == pytest.approx(plan.predicted.seconds, rel=1e-9)
    assert min(span.start_s for span in table.spans) >= 0


def test_items_of_a_row_do_not_overlap(plan: Plan) -> None:
    tracks: dict[tuple[int, str], list[Span]] = defaultdict(list)
    for span in make_timetable(plan).spans:
        if not span.is_whole:
            track = span.track if span.is_beside else "what it does"
            tracks[span.row, track].append(span)
    for spans in tracks.values():
        spans.sort(key=lambda span: span.start_s)
        assert all(a.end_s <= b.start_s + 1e-12 for a, b in pairwise(spans))


def test_items_stand_in_their_actions(plan: Plan) -> None:
    table = make_timetable(plan)
    for whole in (span for span in table.spans if span.is_whole):
        inside = sum(
            span.seconds
            for span in table.spans
            if span.row == whole.row
            and not (span.is_whole or span.is_beside)
            and whole.start_s <= span.start_s < whole.end_s
        )
        assert inside == pytest.approx(whole.seconds)


def test_communication_is_on_the_track_of_its_axis(parts: Plan) -> None:
    table = make_timetable(parts)
    (link,) = table.links
    assert (link.row, link.track) == (0, "axis dp")
    assert link.bytes == sum(boxing.bytes for boxing in parts.boxings)
    wanted = parts.predicted.seconds_by_part["communication dp"]
    assert link.seconds == pytest.approx(wanted)
    assert table.communication_s(0) == pytest.approx(wanted)


def test_links_between_rows_carry_every_microbatch(pipeline: Plan) -> None:
    links = {(link.row, link.track): link for link in make_timetable(pipeline).links}
    assert set(links) == {(0, "to row 1"), (1, "to row 0")}
    for transfer in pipeline.transfers:
        link = links[transfer.sender, f"to row {transfer.receiver}"]
        assert (link.times, link.bytes) == (4, 4 * transfer.bytes)
        assert link.seconds == pytest.approx(4 * transfer.seconds)


def test_arrows_go_to_the_actions_that_wait(stages: Plan) -> None:
    table = make_timetable(stages)
    assert len(table.arrows) == len(table.step.run.transfers) > 0
    for (send, used), event in zip(table.arrows, table.step.run.transfers, strict=True):
        assert send.end_s <= used.start_s + 1e-12
        step = 1 if event.action.work is Work.FORWARD else -1
        stage, number = event.action.stage + step, event.action.microbatch
        assert used.name == f"{stage}{event.action.work}{number}"
        assert used.row == event.to


def test_memory_of_one_stage_peaks_where_the_plan_says(one_stage: Plan) -> None:
    table = make_timetable(one_stage)
    assert table.peak(0).bytes == one_stage.predicted.bytes
    times = [sample.time_s for sample in table.memory[0]]
    assert times == sorted(times)


def test_memory_of_stages_is_what_the_plan_predicts(pipeline: Plan) -> None:
    table = make_timetable(pipeline)
    peaks = [table.peak(row).bytes for row in range(2)]
    assert max(peaks) == pipeline.predicted.bytes


def test_stages_of_one_row_do_not_peak_at_once(interleaved: Plan) -> None:
    table = make_timetable(interleaved)
    peaks = [table.peak(row).bytes for row in range(2)]
    assert max(peaks) < interleaved.predicted.bytes
    alone = [timeline(stage_document(interleaved, n)).peak_bytes for n in range(4)]
    assert max(peaks) > max(alone)


def test_every_microbatch_under_way_holds_what_it_saved(pipeline: Plan) -> None:
    few, many = scheduled(pipeline, "1f1b", 4), scheduled(pipeline, "gpipe", 4)
    saved = stage_memory(stage_document(pipeline, 0)).saved
    assert saved > 0
    assert many.peak(0).bytes - few.peak(0).bytes == (4 - 2) * saved


def test_a_step_ends_with_the_state_it_began_with(parts: Plan) -> None:
    samples = make_timetable(parts).memory[0]
    assert samples[0].bytes == samples[-1].bytes == stage_memory(parts).state


def test_messages_pass_on_their_track_while_the_row_computes() -> None:
    plan = turned("zero3", again=True, bucket=2**14)
    found = make_timetable(plan)
    assert found.step.seconds == pytest.approx(plan.predicted.seconds)
    assert found.peak(0).bytes == plan.predicted.bytes
    beside = [span for span in found.spans if span.is_beside]
    assert len(beside) == len(plan.ahead) + len(plan.late)
    computing = [s for s in found.spans if s.track == COMPUTE and not s.is_whole]
    gathers = [span for span in beside if span.name.startswith("all_gather")]
    while_computing = [
        gather
        for gather in gathers
        if any(s.start_s < gather.end_s and gather.start_s < s.end_s for s in computing)
    ]
    assert len(while_computing) > len(gathers) / 2
