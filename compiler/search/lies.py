"""How a rank's part of the tensors of a posed problem lies in memory."""

from __future__ import annotations

from torch import fx

from partita.compiler.capture.constants import print_constants
from partita.compiler.capture.schemas import may_share_memory
from partita.compiler.cost.layouts import Strides, in_order, is_in_order, lay_out
from partita.compiler.ir.layout import largest_shard_shape
from partita.compiler.ir.program import OutputKind, OutputRole, op_name
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.pose import Posed


class Lies:
    """Tells how tensors lie, on the rank that holds most of them.

    They are taken to lie as they would if nothing were boxed on the way from what made
    them: how they do is known once boxings are.

    Args:
        posed: the problem.
    """

    def __init__(self, posed: Posed) -> None:
        self._posed = posed
        self._nodes = posed.problem.nodes
        self._wholes: dict[tuple[int, int], Strides] = {}

    def of(
        self, value: tuple[int, int], placement: Placement
    ) -> tuple[TensorType, Strides]:
        """Return the type of a tensor's part, and its strides."""
        type_ = self._nodes[value[0]].result_types[value[1]]
        assert type_ is not None
        local = self.local(type_, placement)
        whole, steps = self._whole(value), [0] * local.ndim
        size = step = 1  # of what lies within a dim, in the whole and in the part
        for dim in sorted(range(local.ndim), key=lambda dim: (whole[dim], -dim)):
            if whole[dim] and type_.shape[dim] > 1:  # else it lies in no order
                step = step * whole[dim] // size
                size = whole[dim] * type_.shape[dim]
            steps[dim] = step if whole[dim] else 0
            step *= max(local.shape[dim], 1) if whole[dim] else 1
        return local, tuple(steps)

    def is_copied(self, leaf: int, placement: Placement) -> bool:
        """Whether what leaves is copied then, unless it is boxed on its way.

        Gradients are, whose dims lie in another order (``cost/memory.py``).
        """
        item = self._posed.items[leaf]
        if not (isinstance(item, OutputRole) and item.kind is OutputKind.GRADIENT):
            return False
        (value,) = self._nodes[leaf].operands
        maker = self._posed.items[value[0]]
        if not (isinstance(maker, fx.Node) and may_share_memory(maker.target)):
            return False  # it lies in order
        return not is_in_order(*self.of(value, placement))

    def local(self, type_: TensorType, placement: Placement) -> TensorType:
        """Return the type of the part of a tensor."""
        mesh = self._posed.problem.mesh
        return TensorType(
            largest_shard_shape(type_.shape, placement, mesh), type_.dtype
        )

    def _whole(self, value: tuple[int, int]) -> Strides:
        """Return how a whole tensor lies: in order, or as a view of what does."""
        if value not in self._wholes:
            self._wholes[value] = self._find_whole(*value)
        return self._wholes[value]

    def _find_whole(self, index: int, result: int) -> Strides:
        node, item = self._nodes[index], self._posed.items[index]
        type_ = node.result_types[result]
        assert type_ is not None
        if not (isinstance(item, fx.Node) and node.operands):
            return in_order(type_).strides
        if not may_share_memory(item.target):
            return in_order(type_).strides
        operands: list[tuple[TensorType, Strides]] = []
        for source in node.operands:
            of = self._nodes[source[0]].result_types[source[1]]
            assert of is not None
            operands.append((of, self._whole(source)))
        made = lay_out(
            op_name(item), print_constants(item), tuple(operands), node.result_types
        )
        laid = made[result]
        return in_order(type_).strides if laid is None else laid.strides
