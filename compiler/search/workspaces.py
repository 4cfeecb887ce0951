"""What kernels of a posed problem take for themselves while they run."""

from __future__ import annotations

from torch import fx

from partita.compiler.capture.fingerprint import print_constants
from partita.compiler.capture.schemas import may_share_memory
from partita.compiler.cost.layouts import Strides, in_order, lay_out
from partita.compiler.cost.local_call import LocalCall
from partita.compiler.cost.workspace import has_workspace, workspace_bytes
from partita.compiler.ir.layout import largest_shard_shape
from partita.compiler.ir.program import op_name
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.pose import Posed
from partita.compiler.search.problem import Choice


class Workspaces:
    """Tells what a call takes besides its operands and results.

    Operands are taken to lie as they would if nothing were boxed on the way from what
    made them: how they do is known once boxings are.

    Args:
        posed: the problem.
    """

    def __init__(self, posed: Posed) -> None:
        self._posed = posed
        self._nodes = posed.problem.nodes
        self._known: dict[int, int] = {}
        self._wholes: dict[tuple[int, int], Strides] = {}

    def of(self, index: int, choice: Choice) -> int:
        """Return the bytes on the rank that holds most, if a node takes a choice.

        Equal calls have the same choices, so each of those is looked at once.
        """
        found = self._known.get(id(choice))
        if found is None:
            found = self._known[id(choice)] = self._find(index, choice)
        return found

    def _find(self, index: int, choice: Choice) -> int:
        item = self._posed.items[index]
        if not isinstance(item, fx.Node) or not has_workspace(op_name(item)):
            return 0
        node, signature = self._nodes[index], choice.signature
        operands: list[tuple[TensorType, Strides]] = []
        for (source, result), placement in zip(
            node.operands, signature.operands, strict=True
        ):
            operands.append(self.lies((source, result), placement))
        results = [
            self._local(type_, placement)
            for type_, placement in zip(
                node.result_types, signature.results, strict=True
            )
            if type_ is not None and placement is not None
        ]
        device = self._posed.candidates.hardware.device.kind
        call = LocalCall(
            op_name(item),
            operands,
            results,
            device,
            print_constants(item),
            signature.operands,
            self._posed.problem.mesh.sizes,
        )
        return workspace_bytes(call)

    def lies(
        self, value: tuple[int, int], placement: Placement
    ) -> tuple[TensorType, Strides]:
        """Return a rank's part of a tensor, and how it lies: as the whole does."""
        type_ = self._nodes[value[0]].result_types[value[1]]
        assert type_ is not None
        local = self._local(type_, placement)
        whole, steps = self._whole(*value), [0] * local.ndim
        size = step = 1  # of what lies within a dim, in the whole and in the part
        for dim in sorted(range(local.ndim), key=lambda dim: (whole[dim], -dim)):
            if whole[dim] and type_.shape[dim] > 1:  # else it lies in no order
                step = step * whole[dim] // size
                size = whole[dim] * type_.shape[dim]
            steps[dim] = step if whole[dim] else 0
            step *= max(local.shape[dim], 1) if whole[dim] else 1
        return local, tuple(steps)

    def _whole(self, index: int, result: int) -> Strides:
        """Return how a whole tensor lies: in order, or as a view of what does."""
        value = index, result
        if value not in self._wholes:
            self._wholes[value] = self._find_whole(index, result)
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
            operands.append((of, self._whole(*source)))
        made = lay_out(
            op_name(item), print_constants(item), tuple(operands), node.result_types
        )
        laid = made[result]
        return in_order(type_).strides if laid is None else laid.strides

    def _local(self, type_: TensorType, placement: Placement) -> TensorType:
        mesh = self._posed.problem.mesh
        return TensorType(
            largest_shard_shape(type_.shape, placement, mesh), type_.dtype
        )
