"""Cut a program into pipeline stages: the least predicted seconds over all cuts.

A boundary may lie between any two calls of the forward as they lie along the line
(cut_line.py), and every stage has at least one. Of 1F1B and of GPipe, a step takes what
one microbatch takes on its way through all stages and back, and then what the slowest
stage takes for each of the others. What crosses a boundary is counted to the stage in
front of it. The minimum is exact for this price (cut_bounds.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import inf

import numpy as np

from partita.compiler.errors import NoSolution
from partita.compiler.plan.units import format_bytes
from partita.compiler.search.cut_bounds import Chosen, Cutter
from partita.compiler.search.cut_line import Line
from partita.compiler.search.cut_memory import CutMemory, HeldAlong
from partita.compiler.search.model import Floats


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What a step is priced with; all of it for one microbatch.

    Attributes:
        num_microbatches: into which a batch is cut.
        seconds: by the key of a call; calls that it lacks take no time.
        hop_seconds: what so many bytes across a boundary take, there and back together.
    """

    num_microbatches: int
    seconds: Mapping[str, float]
    hop_seconds: Callable[[int], float]


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a program is cut, and what that is predicted to take.

    Attributes:
        stage_of_forward: the stage of every call of the forward, by its key;
            ``stage_of`` has that of the others.
        seconds: by stage, of its calls, for one microbatch.
        hop_bytes: by boundary, what crosses it for one microbatch, there and back.
        memory_bytes: by stage, as ``CutMemory`` counts it; empty without one.
        step_seconds: of all microbatches.
    """

    stage_of_forward: Mapping[str, int]
    seconds: tuple[float, ...]
    hop_bytes: tuple[int, ...]
    memory_bytes: tuple[int, ...]
    step_seconds: float


def find_cut(
    line: Line,
    pipeline: Pipeline,
    num_stages: int,
    memory: CutMemory | None = None,
) -> Cut:
    """Return the best cut of ``line`` into stages.

    Raises:
        NoSolution: when there are fewer calls than stages, or no cut fits the memory.
    """
    if not 1 <= num_stages <= len(line.forward):
        raise NoSolution(
            f"{num_stages} pipeline stages: the forward has {len(line.forward)} calls, "
            "and a stage has at least one"
        )
    before, hops = _seconds_before(line, pipeline), _hops(line, pipeline)
    anywhere = [np.zeros(len(before), np.int64)] * num_stages
    if memory is None:
        chosen = Cutter(before, hops, anywhere).least(pipeline.num_microbatches)
        assert chosen is not None, "there are enough calls"
        return _described(line, pipeline, before, chosen, ())
    assert len(memory.live) == num_stages
    held, limit = HeldAlong(line, memory), memory.limit_bytes
    allowed = anywhere if limit is None else held.earliest(limit)
    chosen = Cutter(before, hops, allowed).least(pipeline.num_microbatches)
    if chosen is None:
        assert limit is not None
        free = Cutter(before, hops, anywhere).least_hops(inf)
        assert free is not None
        least = _least_memory(before, hops, held, limit, free)
        raise NoSolution(
            f"memory: the limit is {format_bytes(limit)} on a rank, and every cut into "
            f"{num_stages} stages needs {format_bytes(least)} on some rank",
            least,
        )
    return _described(line, pipeline, before, chosen, held.by_stage(chosen.ends))


def _seconds_before(line: Line, pipeline: Pipeline) -> Floats:
    """Return the seconds of all calls in front of each boundary."""
    along = np.zeros(len(line.forward) + 1)
    for key, position in line.position.items():
        along[position + 1] += pipeline.seconds.get(key, 0.0)
    return np.cumsum(along)


def _hops(line: Line, pipeline: Pipeline) -> Floats:
    """Return the seconds of what crosses each boundary; nothing does at the end."""
    known = {count: pipeline.hop_seconds(count) for count in set(line.hop_bytes)}
    hops = np.array([known[count] for count in line.hop_bytes])
    hops[-1] = 0.0
    return hops


def _least_memory(
    before: Floats, hops: Floats, held: HeldAlong, too_little: int, free: Chosen
) -> int:
    """Return the least limit that some cut fits."""
    low, high = too_little + 1, max(held.by_stage(free.ends))
    while low < high:
        limit = (low + high) // 2
        found = Cutter(before, hops, held.earliest(limit)).least_hops(inf)
        if found is None:
            low = limit + 1
        else:
            high = max(held.by_stage(found.ends))
    return high


def _described(
    line: Line,
    pipeline: Pipeline,
    before: Floats,
    chosen: Chosen,
    memory_bytes: tuple[int, ...],
) -> Cut:
    stages = [*enumerate(pairwise((0, *chosen.ends)))]
    others = pipeline.num_microbatches - 1
    return Cut(
        {key: s for s, (a, b) in stages for key in line.forward[a:b]},
        tuple(float(before[b] - before[a]) for _, (a, b) in stages),
        tuple(line.hop_bytes[end] for end in chosen.ends[:-1]),
        memory_bytes,
        float(before[-1]) + chosen.hops + others * chosen.slowest,
    )
