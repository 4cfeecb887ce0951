"""Prices of boxings whose messages share a buffer with those of others.

A message has its part of the buffer's latency, on a machine that has so much less. What
is put together for a scatter, and parted after a gather, is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from partita.compiler.cost.boxing import cheapest_steps
from partita.compiler.cost.step import StepKind, buffer_copied, payload_bytes
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.boxing_figures import BoxingFigures
from partita.compiler.search.model import Floats
from partita.compiler.search.problem import Problem, price_table
from partita.compiler.search.problem_prices import priced_on


def in_buffers(problem: Problem, light: Hardware) -> Problem:
    """Return the problem with boxings as they are in buffers of a machine."""
    priced = priced_on(problem, light)
    copies = BoxingFigures(partial(_copies, problem.mesh, light))
    return replace(priced, box_seconds=_InBuffers(priced, copies))


@dataclass(frozen=True)
class _InBuffers:
    problem: Problem
    copies: BoxingFigures

    def __call__(self, type: TensorType, made: Placement, wanted: Placement) -> float:
        seconds = self.problem.box_seconds(type, made, wanted)
        if not 0.0 < seconds < inf:
            return seconds
        return seconds + self.copies.of_one(type, made, wanted)

    def table(
        self, type: TensorType, made: Sequence[Placement], wanted: Sequence[Placement]
    ) -> Floats:
        """Return the seconds from each placement to each."""
        table = price_table(self.problem, type, made, wanted)
        return table + self.copies.table(type, made, wanted, table)


def _copies(
    mesh: Mesh,
    hardware: Hardware,
    type: TensorType,
    made: Placement,
    wanted: Placement,
) -> float:
    """Return the seconds of what is copied into buffers and out of them.

    A buffer is larger than caches are.
    """
    device = hardware.device
    moved = num = 0
    for step in cheapest_steps(type, made, wanted, mesh, hardware).steps:
        payload = payload_bytes(type, step, mesh) if step.collective else 0
        moved += buffer_copied(step.kind, payload, mesh.sizes[step.axis])
        num += step.kind is StepKind.ALL_GATHER
    return num * device.launch_s + 2 * moved / device.memory_bytes_per_s
