"""How long a fused group of a plan's nodes takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from partita.compiler.cost.compute import memory_s
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.ir.layout import largest_shard_numel
from partita.compiler.ir.sbp import Placement
from partita.compiler.plan.document import Document, Ref
from partita.compiler.plan.uses import Use, find_uses, mesh_of, produced, type_of

# What a call of a compiled region costs, in launches of one op: 10 us in its wrappers
# against 2.5 us of an eager op (benchmarks/region_calls.py, torch 2.13 on the CPU of
# cpu-gloo.json).
CALL_LAUNCHES = 4.0


class GroupSeconds:
    """How long fused groups of a plan's nodes take in a step; a function of keys."""

    def __init__(self, plan: Document) -> None:
        self.plan = plan
        self.device = load_hardware(plan.hardware).device

    @cached_property
    def used_by(self) -> dict[str, list[Use]]:
        """Who uses what a node makes, by its key."""
        found: dict[str, list[Use]] = {key: [] for key in self.plan.order}
        for use in find_uses(self.plan):
            found[use.ref.key].append(use)
        return found

    def __call__(self, keys: Sequence[str]) -> float:
        """Return the seconds of a group: what enters read, what leaves written."""
        inside = set(keys)
        entering = {
            (ref, wanted)
            for key in keys
            for ref, wanted in zip(
                self.plan.nodes[key].operands,
                self.plan.nodes[key].signature.operands,
                strict=True,
            )
            if ref.key not in inside
        }
        leaving = {
            (use.ref, produced(self.plan, use.ref))
            for key in keys
            for use in self.used_by[key]
            if use.consumer not in inside
        }
        touched = self._num_bytes(entering) + self._num_bytes(leaving)
        fused_s = memory_s(touched, self.device) + CALL_LAUNCHES * self.device.launch_s
        return self.plan.microbatches * fused_s

    def _num_bytes(self, tensors: Iterable[tuple[Ref, Placement]]) -> int:
        """Return the bytes of the largest shards of some tensors."""
        found = 0
        for ref, placement in tensors:
            type_ = type_of(self.plan, ref)
            numel = largest_shard_numel(
                type_.shape, placement, mesh_of(self.plan, ref.key)
            )
            found += numel * type_.dtype.itemsize
        return found
