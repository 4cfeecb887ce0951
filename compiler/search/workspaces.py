"""What kernels of a posed problem take for themselves while they run."""

from __future__ import annotations

from torch import fx

from partita.compiler.capture.fingerprint import print_constants
from partita.compiler.cost.layouts import Strides, in_order
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

    Operands are taken to lie in order: how they do is known once boxings are.

    Args:
        posed: the problem.
    """

    def __init__(self, posed: Posed) -> None:
        self._posed = posed
        self._nodes = posed.problem.nodes
        self._known: dict[int, int] = {}

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
            type_ = self._nodes[source].result_types[result]
            assert type_ is not None
            local = self._local(type_, placement)
            operands.append((local, in_order(local).strides))
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

    def _local(self, type_: TensorType, placement: Placement) -> TensorType:
        mesh = self._posed.problem.mesh
        return TensorType(
            largest_shard_shape(type_.shape, placement, mesh), type_.dtype
        )
