"""Products of one tensor and several parameters, which may be one product.

``x @ a.T`` and ``x @ b.T`` are columns of ``x @ c.T``, where ``c`` has the rows of
``a`` and ``b``. So that nothing is copied these parameters lie side by side, each in
one such row at most, and are used as they are held. What is made is a view of the whole
product, whose rows lie apart: it is neither sent nor handed over.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from partita.compiler.cost.compute import Product
from partita.compiler.ir.joined import LEFT
from partita.compiler.ir.layout import largest_shard_shape
from partita.compiler.ir.program import InputKind
from partita.compiler.ir.sbp import Placement
from partita.compiler.plan.document import Document, Node, Ref
from partita.compiler.plan.uses import find_uses, mesh_of, produced, type_of

_ALIGNED_BYTES = 16  # what a kernel reads at once has to begin at a multiple of them


@dataclass(frozen=True, slots=True)
class Joinable:
    """A product that may be one with others that are ``alike``.

    Attributes:
        alike: equal for those that have one left operand and all else in common.
        held: the names of its parameters: the weight, and a bias where it has one.
        dtype: that it computes in.
        product: what the largest rank computes.
    """

    alike: Hashable
    held: tuple[str, ...]
    dtype: torch.dtype
    product: Product


class Rows:
    """Parameters that lie side by side, each in one row at most."""

    def __init__(self) -> None:
        self._row_of: dict[str, tuple[str, ...]] = {}

    def lay(self, members: Sequence[Joinable]) -> str | None:
        """Lay parameters as products that are one want them.

        Returns:
            The first that lies otherwise already; then nothing is changed.
        """
        rows = list(zip(*(member.held for member in members), strict=True))
        laid: dict[str, tuple[str, ...]] = {}
        for row in rows:
            for name in row:
                if name in laid or self._row_of.get(name, row) != row:
                    return name
                laid[name] = row
        self._row_of |= laid
        return None


class Joinables:
    """The products of a plan of one stage that may be joined."""

    def __init__(self, document: Document) -> None:
        self.document = document

    def of(self, key: str) -> Joinable | None:
        """Return what a call is of that may be joined; ``None`` where it may not."""
        node = self.document.nodes[key]
        if node.op not in LEFT or node.constants or key in self._leaving:
            return None
        at = LEFT[node.op]
        held = [self._transposed(node, at + 1)]
        held += [self._held(node, position) for position in range(at)]
        names = tuple(name for name in held if name is not None)
        (m, k), (_, n) = self._shape(node, at), self._shape(node, at + 1)
        dtypes = {
            type_of(self.document, ref).dtype for ref in (*node.operands, Ref(key))
        }
        if len(names) < len(held) or len(dtypes) > 1:
            return None
        (dtype,) = dtypes
        if k * dtype.itemsize % _ALIGNED_BYTES or n * dtype.itemsize % _ALIGNED_BYTES:
            return None
        left = self._origin(node.operands[at], node.signature.operands[at])
        alike = node.op, node.stage, node.phase, left, dtype, m, k
        return Joinable(alike, names, dtype, Product(m, n, k))

    def is_view(self, key: str) -> bool:
        """Whether a call takes no time: it is a view of its one operand."""
        node = self.document.nodes[key]
        return not (node.role or node.seconds) and len(node.operands) == 1

    def _shape(self, node: Node, position: int) -> tuple[int, int]:
        """Return what the largest rank has of an operand."""
        ref, wanted = node.operands[position], node.signature.operands[position]
        type_, mesh = type_of(self.document, ref), mesh_of(self.document, ref.key)
        rows, columns = largest_shard_shape(type_.shape, wanted, mesh)
        return rows, columns

    def _transposed(self, node: Node, position: int) -> str | None:
        """Return the parameter that an operand is the transpose of, as it is held."""
        ref, wanted = node.operands[position], node.signature.operands[position]
        made = self.document.nodes[ref.key]
        is_transposed = made.op == "aten.permute.default"
        is_transposed &= made.constants == ("1=[1, 0]",)
        if not is_transposed or produced(self.document, ref) != wanted:
            return None
        return self._held(made, 0)

    def _held(self, node: Node, position: int) -> str | None:
        """Return the parameter that an operand is, if it is used as it is updated."""
        ref, wanted = node.operands[position], node.signature.operands[position]
        role = self.document.nodes[ref.key].role
        if role is None or role.kind is not InputKind.PARAMETER:
            return None
        own = self.document.parameters[role.name].placements
        is_as_held = own.optimizer in (None, own.storage) and own.storage == wanted
        return role.name if is_as_held else None

    def _origin(self, ref: Ref, wanted: Placement) -> Hashable:
        """Return what is equal for views that are alike of one tensor."""
        views: list[Hashable] = []
        while self.is_view(ref.key) and produced(self.document, ref) == wanted:
            node = self.document.nodes[ref.key]
            views.append((node.op, node.constants, wanted))
            ref, wanted = node.operands[0], node.signature.operands[0]
        return ref, wanted, tuple(views)

    @cached_property
    def _leaving(self) -> frozenset[str]:
        """What leaves the program or its placement, as it is made or as a view."""
        nodes = self.document.nodes
        found = {
            use.ref.key
            for use in find_uses(self.document)
            if use.consumer not in nodes
            or produced(self.document, use.ref) != use.wanted
        }
        for key in reversed(self.document.order):
            if key in found and self.is_view(key):
                found.add(nodes[key].operands[0].key)
        return frozenset(found)
