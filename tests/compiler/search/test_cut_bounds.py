"""The least of all cuts of a line of figures, against every cut of it."""

from __future__ import annotations

import time
from itertools import combinations, pairwise
from math import inf

import numpy as np
import pytest

from partita.compiler.search.cut_bounds import Cutter
from partita.compiler.search.model import Floats, Ints

Random = np.random.Generator


def least_of_all(before: Floats, hops: Floats, earliest: list[Ints], m: int) -> float:
    """Try every cut."""
    least, end = inf, len(before) - 1
    for inside in combinations(range(1, end), len(earliest) - 1):
        stages = [*pairwise((0, *inside, end))]
        if all(a >= earliest[s][b] for s, (a, b) in enumerate(stages)):
            took = [before[b] - before[a] + hops[b] for a, b in stages]
            least = min(least, sum(hops[b] for _, b in stages) + (m - 1) * max(took))
    return least


def random_windows(rng: Random, count: int) -> Ints:
    """Return where a stage may begin, which never falls along the line."""
    moved = rng.integers(0, count, count) * (rng.random(count) < 0.3)
    rising = np.maximum.accumulate(np.concatenate([[0], moved]))
    return np.minimum(rising, np.arange(count + 1))


@pytest.mark.parametrize("seed", range(8))
def test_cut_of_random_figures_is_the_best_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(100):
        count = int(rng.integers(1, 11))
        stages = int(rng.integers(1, min(count, 5) + 1))
        m = int(rng.choice([1, 2, 4, 9]))
        seconds = rng.integers(0, 6, count) * (rng.random(count) < 0.7)
        before = np.concatenate([[0.0], np.cumsum(seconds)])
        costs = rng.integers(0, 5, count) * rng.choice([0.1, 1.0, 3.0])
        hops = np.concatenate([costs, [0.0]])
        anywhere = rng.random() < 0.3
        earliest = [
            np.zeros(count + 1, np.int64) if anywhere else random_windows(rng, count)
            for _ in range(stages)
        ]
        found = Cutter(before, hops, earliest).least(m)
        want = least_of_all(before, hops, earliest, m)
        if found is None:
            assert want == inf
            continue
        assert found.hops + (m - 1) * found.slowest == pytest.approx(want, abs=1e-9)
        steps = [*enumerate(pairwise((0, *found.ends)))]
        assert all(earliest[s][b] <= a < b for s, (a, b) in steps)
        took = [before[b] - before[a] + hops[b] for _, (a, b) in steps]
        assert found.slowest == pytest.approx(max(took))
        assert found.hops == pytest.approx(sum(hops[b] for _, (_, b) in steps))


def long_line(rng: Random, num_layers: int, num_calls: int) -> tuple[Floats, Floats]:
    """Return equal layers, but for noise, in most of which it is dear to cut."""
    seconds = rng.gamma(0.3, 1.0, num_calls) * (rng.random(num_calls) < 0.5)
    noise = 1 + 0.1 * rng.random(num_layers * num_calls)
    before = np.concatenate([[0.0], np.cumsum(np.tile(seconds, num_layers) * noise)])
    hops = rng.choice([2.0, 3.0, 4.0, 7.0, 9.0], num_calls)
    hops[0] = 1.0
    scale = before[-1] / num_layers / 20
    return before, np.concatenate([np.tile(hops, num_layers), [0.0]]) * scale


def test_long_lines_are_cut_in_little_time() -> None:
    for num_layers, num_calls, stages, most_s in ((32, 220, 8, 2), (96, 208, 64, 20)):
        before, hops = long_line(np.random.default_rng(0), num_layers, num_calls)
        anywhere = [np.zeros(len(before), np.int64)] * stages
        started = time.process_time()
        found = Cutter(before, hops, anywhere).least(4 * stages)
        assert found is not None
        assert time.process_time() - started < most_s
        assert found.slowest < 2.0 * before[-1] / stages
