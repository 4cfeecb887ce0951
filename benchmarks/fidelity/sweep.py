"""The sweep of Llama layouts on H100 clusters, and what a planner would be judged by.

Nanotron's measurements (the Ultra-Scale Playbook): one row per layout, with tokens a
second or that memory ran out.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.fidelity.layout import Layout
from benchmarks.fidelity.models import Shape
from benchmarks.fidelity.nanotron import ran
from benchmarks.fidelity.predict import Prediction

_INNER = {2048: 8192, 4096: 14336}
"""By hidden size, for 1.34 and 8.86 billion parameters (the playbook's names)."""


@dataclass(frozen=True)
class Measured:
    """A row: ``seconds`` of a step, ``None`` where memory ran out."""

    nodes: int
    layout: Layout
    seconds: float | None
    held_bytes: float

    @property
    def group(self) -> tuple[int, int]:
        """What is compared with each other: one model on one number of nodes."""
        return self.layout.shape.hidden, self.nodes


def read(path: Path) -> list[Measured]:
    """Return all rows."""
    with path.open(newline="") as file:
        return [_read(row) for row in csv.DictReader(file)]


def _read(row: dict[str, Any]) -> Measured:
    def number(key: str) -> int:
        return int(float(row[key]))

    hidden = number("hidden_size")
    shape = Shape(
        number("num_layers"),
        hidden,
        number("num_heads"),
        number("seq_len"),
        number("vocab_size"),
        _INNER[hidden],
        is_llama=True,
        is_flash=True,
        is_tied=hidden == 2048,
    )
    how = ran(row)
    dp, pp, micro = number("dp"), number("pp"), number("microbatch_size")
    layout = Layout(
        shape,
        how.hardware,
        pp,
        dp,
        number("tp"),
        micro,
        dp * micro * number("microbatches"),
        zero=number("zero_stage"),
        is_sequence_parallel=row["tp_mode"] == "REDUCE_SCATTER" and number("tp") > 1,
        sizes=_by_cost(shape, pp),
        fuse=False,  # Nanotron runs op by op
        system=how.system,
    )
    seconds = None
    if row["status"] == "Success":
        rate = float(row["tokens_per_s_per_gpu"]) * layout.ranks
        seconds = layout.batch * shape.sequence / rate
    held = float(row["memory_reserved_gib"] or 0) * 2**30
    return Measured(number("nodes"), layout, seconds, held)


def _by_cost(shape: Shape, stages: int) -> tuple[int, ...]:
    """Return the layers by stage, as Nanotron deals them out.

    nanotron, models/base.py, build_model: a stage has blocks until its share of all
    costs is reached; a layer costs its weights in the products, the output those of
    the vocabulary. Where a block ends at a share, the memory noted beside the runs is
    that of a stage which ends there, too.
    """
    layer = 4 * shape.hidden**2 + 3 * shape.hidden * shape.inner
    costs = [*[layer] * shape.layers, shape.hidden * shape.vocabulary]
    ends = list(accumulate(costs))
    sizes, stage = [0] * stages, 0
    for end in ends[:-1]:
        sizes[stage] += 1
        if end >= ends[-1] * (stage + 1) / stages:
            stage += 1
    return tuple(sizes)


@dataclass(frozen=True)
class Judged:
    """How well predictions rank the layouts of a group.

    Attributes:
        group: hidden size and nodes.
        count: of layouts that ran.
        chosen: throughput of the layout that is predicted to be the fastest, of those
            that are predicted to fit, over that of the fastest; 0 where it ran out of
            memory.
        spearman: rank correlation of the seconds of layouts that ran.
        median_error: of those seconds.
    """

    group: tuple[int, int]
    count: int
    chosen: float
    spearman: float
    median_error: float


def judge(rows: Sequence[Measured], found: Sequence[Prediction], room: int) -> Judged:
    """Return how well a group is predicted, on devices of ``room`` bytes."""
    pairs = list(zip(rows, found, strict=True))
    ran = [(row.seconds, p.seconds) for row, p in pairs if row.seconds is not None]
    best = min(
        (pair for pair in pairs if pair[1].bytes <= room),
        key=lambda pair: pair[1].seconds,
        default=None,
    )
    fastest = min(seconds for seconds, _ in ran)
    taken = None if best is None else best[0].seconds
    measured, predicted = np.array(ran).T
    return Judged(
        rows[0].group,
        len(ran),
        fastest / taken if taken else 0.0,
        _correlation(_ranks(measured), _ranks(predicted)),
        float(np.median(np.abs(predicted / measured - 1))),
    )


def _ranks(values: Any) -> Any:
    return np.argsort(np.argsort(values)).astype(float)


def _correlation(one: Any, other: Any) -> float:
    return float(np.corrcoef(one, other)[0, 1])


def out_of_memory(
    rows: Sequence[Measured], found: Sequence[Prediction], room: int
) -> tuple[float, float]:
    """Return precision and recall of running out of memory."""
    pairs = [
        (row.seconds is None, p.bytes > room)
        for row, p in zip(rows, found, strict=True)
    ]
    both = sum(ran_out and foretold for ran_out, foretold in pairs)
    foretold = sum(foretold for _, foretold in pairs)
    ran_out = sum(ran_out for ran_out, _ in pairs)
    return both / max(foretold, 1), both / max(ran_out, 1)
