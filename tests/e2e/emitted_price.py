"""The price of what a rank runs, from the emitted program alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from partita.compiler.cost.collectives import CollectiveKind, axis_seconds, wire_bytes
from partita.compiler.cost.compute import op_seconds
from partita.compiler.cost.products import local_sizes, product_of
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.program import InputKind, InputRole, has_info, info
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.rules.calls import call_of, rule_and_factors
from partita.compiler.rules.rule import RuleSet
from partita.compiler.search.candidates import flops_of

_KINDS = {
    "all_reduce": CollectiveKind.ALL_REDUCE,
    "all_reduce_": CollectiveKind.ALL_REDUCE,
    "all_gather_into_tensor": CollectiveKind.ALL_GATHER,
    "reduce_scatter_tensor": CollectiveKind.REDUCE_SCATTER,
    "all_to_all_single": CollectiveKind.ALL_TO_ALL,
}


@dataclass
class Price:
    """Seconds of a rank's ops and collectives, and how many of each there are."""

    compute_s: float = 0.0
    collectives_s: float = 0.0
    num_calls: int = 0
    num_collectives: int = 0


def emitted_price(local: LocalProgram, rules: RuleSet, hardware: Hardware) -> Price:
    """Return what the ops and collectives of ``local`` take, copies left out.

    Every tensor's shape is what torch makes of the emitted call; no plan is asked.
    """
    return _Pricer(local, rules, hardware).price()


class _Pricer(fx.Interpreter):
    def __init__(self, local: LocalProgram, rules: RuleSet, hardware: Hardware) -> None:
        super().__init__(local.graph_module)
        self.local = local
        self.rules = rules
        self.hardware = hardware
        self.placeholders = local.graph_module.graph.find_nodes(op="placeholder")
        self.found = Price()

    def price(self) -> Price:
        with FakeTensorMode(allow_non_fake_inputs=True):
            self.run(*map(self._enter, self.local.inputs, self.placeholders))
        return self.found

    def _enter(self, role: InputRole, node: fx.Node) -> torch.Tensor | int:
        if role.kind is InputKind.COORDINATE:
            return self.local.coordinates[self.local.mesh.axis(role.name)]
        (type_,) = info(node).types
        assert type_ is not None
        return torch.empty(type_.shape, dtype=type_.dtype)

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.op == "call_function":
            target = str(n.target)
            if target.startswith("_c10d_functional.") and "wait" not in target:
                self._collective(n, target.split(".")[1])
            elif has_info(n) and not _is_part(n):
                self._call(n)
        return result

    def _collective(self, n: fx.Node, name: str) -> None:
        given = self.env[n.all_input_nodes[0]]
        (group,) = (a for a in n.args if isinstance(a, str) and "/" in a)
        axis = self.local.mesh.axis(group.rpartition("/")[2])
        kind, size = _stands_for(n) or _KINDS[name], self.local.mesh.sizes[axis]
        payload = given.numel() * given.itemsize
        if kind is CollectiveKind.ALL_REDUCE and kind is not _KINDS[name]:
            wire = wire_bytes(kind, payload // size, size)
        else:
            wire = wire_bytes(_KINDS[name], payload, size)
        self.found.collectives_s += axis_seconds(
            kind, wire, self.local.mesh, axis, self.hardware
        )
        self.found.num_collectives += 1

    def _call(self, n: fx.Node) -> None:
        call = call_of(n)
        rule, factors = rule_and_factors(self.rules, call)
        if rule.free:
            return
        tensors: list[TensorType] = [*call.operands]
        tensors += [type_ for type_ in call.results if type_ is not None]
        dtype = next(t.dtype for t in (*call.results, *call.operands) if t is not None)
        self.found.compute_s += op_seconds(
            flops_of(factors, {}),
            sum(type_.num_bytes for type_ in tensors),
            dtype,
            self.hardware.device,
            call.op,
            product_of(factors, local_sizes(factors, {})),
        )
        self.found.num_calls += 1


def _stands_for(call: fx.Node) -> CollectiveKind | None:
    """Return what a call carries out as an exchange: a gather of what is repeated for
    each, a scatter of which each part is added up, or both, a sum.
    """
    if "all_to_all" not in str(call.target):
        return None
    (given,), (wait,) = call.all_input_nodes, call.users
    is_repeated = given.target is torch.ops.aten.repeat.default
    if given.target is torch.ops.aten.cat.default:  # of a bucket
        parts = cast(list[fx.Node], given.args[0])
        is_repeated = len({*parts}) < len(parts)
    reductions = {"aten.sum.dim_IntList", "aten.amax.default", "aten.amin.default"}
    own = [user for apart in wait.users for user in apart.users if _is_part(user)]
    adds = any(str(user.target) in reductions for user in own)
    if adds:
        is_sum = is_repeated
        return CollectiveKind.ALL_REDUCE if is_sum else CollectiveKind.REDUCE_SCATTER
    return CollectiveKind.ALL_GATHER if is_repeated else None


def _is_part(node: fx.Node) -> bool:
    """Whether a node is a part of a boxing, or its result."""
    return has_info(node) and " -> " in info(node).key
