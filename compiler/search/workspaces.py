"""What kernels of a posed problem take for themselves while they run."""

from __future__ import annotations

from torch import fx

from partita.compiler.capture.constants import print_constants
from partita.compiler.cost.layouts import Strides
from partita.compiler.cost.local_call import LocalCall
from partita.compiler.cost.workspace import has_workspace, workspace_bytes
from partita.compiler.ir.program import op_name
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.lies import Lies
from partita.compiler.search.pose import Posed
from partita.compiler.search.problem import Choice


class Workspaces:
    """Tells what a call takes besides its operands and results.

    Args:
        posed: the problem.
    """

    def __init__(self, posed: Posed) -> None:
        self._posed = posed
        self._nodes = posed.problem.nodes
        self._lies = posed.known(Lies)
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
        operands: list[tuple[TensorType, Strides]] = [
            self._lies.of(value, placement)
            for value, placement in zip(node.operands, signature.operands, strict=True)
        ]
        results = [
            self._lies.local(type_, placement)
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
