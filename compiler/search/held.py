"""How a trained parameter is held apart from what the step receives of it."""

from __future__ import annotations

from dataclasses import dataclass

from partita.compiler.cost.boxing import Steps, cheapest_steps
from partita.compiler.cost.compute import op_seconds
from partita.compiler.cost.optimizer_memory import touched_bytes
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.layout import largest_shard_numel
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType


@dataclass(frozen=True, slots=True)
class Held:
    """In which placement its gradient is complete, and in which it is updated.

    The second is that of the parameter itself between steps, of ``.grad`` and of the
    optimizer's state.
    """

    gradient: Placement
    optimizer: Placement

    def seconds(
        self, type: TensorType, storage: Placement, mesh: Mesh, hardware: Hardware
    ) -> float:
        """Return the time of the ways to ``optimizer`` and from it to ``storage``."""
        return sum(way.seconds for way in self.ways(type, storage, mesh, hardware))

    def ways(
        self, type: TensorType, storage: Placement, mesh: Mesh, hardware: Hardware
    ) -> list[Steps]:
        """Return the ways to ``optimizer`` and from it to ``storage``."""
        ends = ((self.gradient, self.optimizer), (self.optimizer, storage))
        return [
            cheapest_steps(type, source, target, mesh, hardware)
            for source, target in ends
            if source != target
        ]


def update_seconds(
    type: TensorType,
    placement: Placement,
    mesh: Mesh,
    hardware: Hardware,
    optimizer: str,
) -> float:
    """Return the time of an optimizer's step on the largest shard of a parameter."""
    local = largest_shard_numel(type.shape, placement, mesh)
    size = type.dtype.itemsize
    device = hardware.device
    kernels = touched_bytes(optimizer, local * size, size, device.kind)
    return sum(op_seconds(0.0, each, type.dtype, device) for each in kernels)
