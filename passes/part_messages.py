"""Start messages before they are needed, or wait for them later, as the plan says.

Before   %1 = mm(...);  %2 = all_gather(%w);  %3 = wait(%2);  %4 = mm(%1, %3)
After    %2 = all_gather(%w);  %1 = mm(...);  %3 = wait(%2);  %4 = mm(%1, %3)

What a boxing, or a bucket, does up to its last collective moves before the call that
``plan.ahead`` names; the wait for that, with what follows in the boxing, before the
call that ``plan.late`` names, and views of what it makes go along. All ranks have both
in one order, since it hangs on the plan alone.

Requires  a LocalProgram, buckets sent together
Ensures   ranks begin their collectives in one order
Keeps     every value
Not here  choosing what passes when (search); waits for sums (sink_waits)
Source    Y. Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data
          Parallel", VLDB 2023, section 3.3: gathers ahead, scatters behind
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import fx

from partita.compiler.errors import BadPlan
from partita.compiler.ir.joined import joined_key
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.program import has_info, info
from partita.compiler.plan.document import Document
from partita.compiler.plan.turns import END
from partita.passes.localize import boxing_of_part
from partita.passes.ordering import in_order, missing
from partita.passes.sink_waits import is_part


def part_messages(local: LocalProgram, plan: Document) -> LocalProgram:
    """Return the program with messages that pass while the rank computes.

    Raises:
        BadPlan: for a place that the program does not have.
    """
    return _Parting(local, plan).run() if plan.ahead or plan.late else local


class _Parting:
    def __init__(self, local: LocalProgram, plan: Document) -> None:
        self.local = local
        self.plan = plan
        self.nodes: list[fx.Node] = list(local.graph_module.graph.nodes)
        self.first_of = {key: keys[0] for keys in plan.buckets for key in keys}
        self.boxings = {boxing.key for boxing in plan.boxings}
        self.regions = {
            key: f"fusion[{i}]" for i, keys in enumerate(plan.fusion) for key in keys
        } | {key: joined_key(i) for i, keys in enumerate(plan.joined) for key in keys}
        self.at = {node: i for i, node in enumerate(self.nodes)}
        self.calls: dict[str, fx.Node] = {}
        self.rows: dict[str, list[fx.Node]] = {}  # of boxings, those of a bucket in one
        for node in self.nodes:
            if has_info(node):
                self.calls.setdefault(info(node).key, node)
            key = self._unit_of(node)
            if key is not None:
                self.rows.setdefault(key, []).append(node)

    def run(self) -> LocalProgram:
        before: dict[fx.Node, list[fx.Node]] = {}  # what comes right before which node
        late: set[fx.Node] = set()
        for key, place in self._in_order(self.plan.late):
            _, second = self._halves(key)
            late.update(second)
            if place != END:
                before.setdefault(self._place(key, place), []).extend(second)
        for key, place in self._in_order(self.plan.ahead):
            first, _ = self._halves(key)
            before.setdefault(self._place(key, place), []).extend(first)
        for node in self.nodes:
            if late and is_part(node, late):
                late.add(node)
        order: dict[fx.Node, None] = {}
        for node in self.nodes:
            wanted = [*before.get(node, ()), *(() if node in late else (node,))]
            for needed in (w for w in wanted if w not in order):
                order.update(dict.fromkeys(missing(needed, order)))
        return in_order(self.local, list(order))

    def _unit_of(self, node: fx.Node) -> str | None:
        """Return the boxing that a node is of, of a bucket its first."""
        if node.op != "call_function" or not has_info(node):
            return None
        key = info(node).key
        boxing = key if key in self.boxings else boxing_of_part(key)
        return self.first_of.get(boxing, boxing) if boxing in self.boxings else None

    def _in_order(self, turns: Mapping[str, str]) -> list[tuple[str, str]]:
        """Return the messages that this rank has of ``turns``, and their places."""
        known = [(key, place) for key, place in turns.items() if key in self.rows]
        return sorted(known, key=lambda pair: self.at[self.rows[pair[0]][0]])

    def _halves(self, key: str) -> tuple[list[fx.Node], list[fx.Node]]:
        """Return what a boxing does up to its last collective, and the rest.

        Nothing of what calls none: it is empty here.
        """
        row = self.rows[key]
        calls = [i for i, node in enumerate(row) if _is_collective(node)]
        return (row[: calls[-1] + 1], row[calls[-1] + 1 :]) if calls else ([], [])

    def _place(self, key: str, place: str) -> fx.Node:
        """Return the first node of a call, its fused region or a boxing."""
        if place in self.boxings:
            row = self.rows.get(self.first_of.get(place, place))
            found = row[0] if row else None
        else:
            found = self.calls.get(self.regions.get(place, place))
        if found is None:
            raise BadPlan(f"{key!r} stands before {place!r}, which no rank runs")
        return found


def _is_collective(node: fx.Node) -> bool:
    is_wait = node.target is torch.ops._c10d_functional.wait_tensor.default
    namespace = getattr(node.target, "namespace", "")
    return namespace == "_c10d_functional" and not is_wait
