"""Prices of boxings whose messages share a buffer with those of others.

A message has its part of the buffer's latency, on a machine that has so much less. What
is put together for a scatter, and parted after a gather, is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from partita.compiler.cost.boxing import cheapest_steps
from partita.compiler.cost.step import StepKind, buffer_copied, payload_bytes
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.model import Floats
from partita.compiler.search.problem import Problem, price_table
from partita.compiler.search.problem_prices import priced_on

_Asked = tuple[TensorType, tuple[Placement, ...], tuple[Placement, ...]]


def in_buffers(problem: Problem, light: Hardware) -> Problem:
    """Return the problem with boxings as they are in buffers of a machine."""
    priced = priced_on(problem, light)
    return replace(priced, box_seconds=_InBuffers(priced, light))


@dataclass(frozen=True)
class _InBuffers:
    problem: Problem
    hardware: Hardware
    known: dict[_Asked, Floats] = field(
        default_factory=dict[_Asked, Floats], compare=False, repr=False
    )

    def __call__(self, type: TensorType, made: Placement, wanted: Placement) -> float:
        seconds = self.problem.box_seconds(type, made, wanted)
        return seconds + self._copies(type, made, wanted)

    def table(
        self, type: TensorType, made: Sequence[Placement], wanted: Sequence[Placement]
    ) -> Floats:
        """Return the seconds from each placement to each."""
        table = price_table(self.problem, type, made, wanted)
        key = type, tuple(made), tuple(wanted)
        if key not in self.known:
            copied = np.zeros_like(table)
            for row, column in zip(*table.nonzero(), strict=True):
                if table[row, column] < inf:
                    copied[row, column] = self._copies(type, made[row], wanted[column])
            self.known[key] = copied
        return table + self.known[key]

    def _copies(self, type: TensorType, made: Placement, wanted: Placement) -> float:
        """Return the seconds of what is copied into buffers and out of them.

        A buffer is larger than caches are.
        """
        mesh, device = self.problem.mesh, self.hardware.device
        moved = num = 0
        for step in cheapest_steps(type, made, wanted, mesh, self.hardware).steps:
            payload = payload_bytes(type, step, mesh) if step.collective else 0
            moved += buffer_copied(step.kind, payload, mesh.sizes[step.axis])
            num += step.kind is StepKind.ALL_GATHER
        return num * device.launch_s + 2 * moved / device.memory_bytes_per_s
