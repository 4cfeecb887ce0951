"""Releases that the profiler is not told of are put where another step has them."""

from __future__ import annotations

import threading

import pytest
import torch

from partita.runtime.allocator_events import Event, record_events, with_releases

CPU = torch.device("cpu")


def test_what_is_given_out_anew_was_released() -> None:
    events = [Event("a", 8, 1), Event("b", 4, 1), Event("b", -4, 1)]
    (found,) = with_releases([events])
    assert [event.num_bytes for event in found] == [8, -8, 4, -4]


def test_a_release_is_put_as_late_as_it_may_have_been() -> None:
    told = [Event("a", 8, 1), Event("b", 4, 2), Event("a", -8, 1), Event("c", 2, 3)]
    lost = [Event("a", 8, 4), Event("b", 4, 5), Event("b", -4, 5), Event("c", 2, 6)]
    _, found = with_releases([told, lost])
    assert [event.num_bytes for event in found] == [8, 4, -4, -8, 2]


def test_what_no_step_releases_stays() -> None:
    steps = [[Event("a", 8, 1), Event("b", 4, 2)], [Event("a", 8, 3), Event("b", 4, 1)]]
    assert with_releases(steps) == steps


def test_what_another_thread_allocates_is_not_counted_as_the_runs_own() -> None:
    told = [Event("a", 8, 1), Event("a", -8, 1), Event("b", 4, 2)]
    other = Event("", 16, 7, is_own=False)
    _, found = with_releases([told, [other, Event("a", 8, 3), Event("b", 4, 4)]])
    assert [event.num_bytes for event in found] == [16, 8, -8, 4]


def test_releases_of_what_was_there_before_stay_as_they_are() -> None:
    events = [Event("a", -8, 1), Event("b", 4, 1)]
    assert with_releases([events]) == [events]


@pytest.mark.parametrize("is_told", [True, False])
def test_a_thread_that_lets_go_last_is_not_seen(is_told: bool) -> None:
    def run() -> torch.Tensor:
        kept = [torch.ones(64, 64)]
        if is_told:
            kept.clear()
        else:
            thread = threading.Thread(target=kept.clear)
            thread.start()
            thread.join()
        return torch.ones(16, 16)

    sizes = [event.num_bytes for event in record_events(run, CPU)]
    assert sizes[:2] == [64 * 64 * 4, -64 * 64 * 4 if is_told else 16 * 16 * 4]
