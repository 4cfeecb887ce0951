"""How long products of a plan that are one take, and what reading their parts costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from partita.compiler.cost.compute import memory_s, op_seconds
from partita.compiler.cost.layouts import Strides, in_order, is_in_order, lay_out
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.ir.layout import largest_shard_shape
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.document import Document, Ref
from partita.compiler.plan.joined import Joinable, Joinables
from partita.compiler.plan.uses import Use, find_uses, mesh_of, produced, type_of

# What a CPU's kernel takes more for each row that does not begin where the last ended,
# since it reads no further ahead: 25 ns for rows of 640 numbers in its cache, 93 ns for
# rows beyond it (torch 2.13, one core).
ROW_S = 5e-8


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a product, or a view of one, as the largest rank has it.

    ``apart`` and ``joined`` are its strides where it is made by itself, or is a part.
    """

    ref: Ref
    type: TensorType
    apart: Strides
    joined: Strides


class JoinedSeconds:
    """How long joined products of a plan take in a step; a function of keys.

    What is read and written is what the parts take, but for the left operand, which is
    read once. Whoever reads a part as it would lie by itself pays for its rows, which
    lie apart; a view that cannot be one of such rows is a copy.
    """

    def __init__(self, plan: Document) -> None:
        self.plan = plan
        self.device = load_hardware(plan.hardware).device
        self.joinables = Joinables(plan)
        self.group_of = {key: keys[0] for keys in plan.fusion for key in keys}

    @cached_property
    def _used_by(self) -> dict[Ref, list[Use]]:
        found: dict[Ref, list[Use]] = {}
        for use in find_uses(self.plan):
            if use.consumer in self.plan.nodes:
                found.setdefault(use.ref, []).append(use)
        return found

    def __call__(self, keys: Sequence[str]) -> float:
        """Return the seconds of products that are one; ``check_joined`` takes them."""
        members = [self.joinables.of(key) for key in keys]
        known = [member for member in members if member is not None]
        assert len(known) == len(keys), f"{keys} cannot be one product"
        columns = sum(member.product.n for member in known)
        found_s = self._product_s(self.plan.nodes[keys[0]].op, known[0], columns)
        for key in keys:
            found_s += self._reading_s(key, columns)
        return self.plan.microbatches * found_s

    def _product_s(self, op: str, first: Joinable, columns: int) -> float:
        whole = replace(first.product, n=columns)
        m, n, k = whole.m, whole.n, whole.k
        numel = m * k + k * n + m * n + n * (len(first.held) - 1)
        num_bytes = numel * first.dtype.itemsize
        figures = 2 * m * k * n, num_bytes, first.dtype, self.device
        return op_seconds(*figures, op, whole)

    def _reading_s(self, key: str, columns: int) -> float:
        """Return what the users of a part take more than if it lay by itself."""
        ref = Ref(key)
        type_ = self._local(ref)
        found_s, readers = 0.0, set[tuple[str, Ref]]()
        waiting = [_Part(ref, type_, in_order(type_).strides, (columns, 1))]
        while waiting:
            part = waiting.pop()
            for use in self._used_by.get(part.ref, ()):
                if not self.joinables.is_view(use.consumer):
                    lie = part.apart, part.joined
                    if [is_in_order(part.type, x) for x in lie] == [True, False]:
                        reader = self.group_of.get(use.consumer, use.consumer)
                        readers.add((reader, part.ref))
                    continue
                view = self._view(use.consumer, part)
                if view is None:
                    moved = 2 * part.type.num_bytes
                    found_s += memory_s(moved, self.device) + self.device.launch_s
                else:
                    waiting += view
        if self.device.kind == "cpu":
            found_s += ROW_S * type_.shape[0] * len(readers)
        return found_s

    def _view(self, key: str, part: _Part) -> list[_Part] | None:
        """Return what a view makes of a part; ``None`` where it is a copy of it alone.

        What is a copy of a tensor that lies by itself too is nothing to go on from.
        """
        node = self.plan.nodes[key]
        made = tuple(
            None if type_ is None else self._local(Ref(key, i))
            for i, type_ in enumerate(node.types)
        )
        apart, joined = (
            lay_out(node.op, node.constants, ((part.type, strides),), made)
            for strides in (part.apart, part.joined)
        )
        found: list[_Part] = []
        for i, (type_, one, two) in enumerate(zip(made, apart, joined, strict=True)):
            if type_ is None or one is None or two is None or one.operand is None:
                continue
            if two.operand is None:
                return None
            found.append(_Part(Ref(key, i), type_, one.strides, two.strides))
        return found

    def _local(self, ref: Ref) -> TensorType:
        """Return the type of the largest rank's part of a tensor."""
        type_, mesh = type_of(self.plan, ref), mesh_of(self.plan, ref.key)
        shape = largest_shard_shape(type_.shape, produced(self.plan, ref), mesh)
        return TensorType(shape, type_.dtype)
