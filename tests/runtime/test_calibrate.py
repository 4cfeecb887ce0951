"""A collective is timed in the midst of computing."""

from __future__ import annotations

import time

import pytest

from partita.compiler.ir.mesh import Mesh
from partita.runtime.calibrate import Trials, effort
from partita.runtime.groups import bind


@pytest.mark.dist
def test_what_comes_before_is_taken_off_and_what_it_makes_slower_is_not() -> None:
    trials = Trials(bind(Mesh(tp=1), "cpu").device, effort("cpu", True))
    done: list[str] = []

    def compute() -> None:
        time.sleep(0.06)
        done.append("compute")

    def message() -> None:
        time.sleep(0.03 if done[-1:] == ["compute"] else 0.001)
        done.append("message")

    number = trials.add(message, 2, compute)
    (seconds,) = trials.run()
    assert number == 0
    assert 0.025 < seconds < 0.06


def test_cpus_compute_between_collectives() -> None:
    assert effort("cpu", False).between is not None
    assert effort("cuda", False).between is None
