"""Which small ops become one kernel: where that saves memory traffic and launches.

Every node gets a level. Along an *open* edge, from one op that can be of a kernel
(``fusible.py``) to another of the same half of the step, without a boxing, the level
may stay; along every other edge it rises. So a path that leaves the ops of one level
never comes back to them: a group within one level is convex, and groups never wait for
each other in a ring. A group is what open edges join within a level, less the views at
its rim.

Fusing pays where reading once what enters, writing once what leaves and the call of
the kernel take less time than the ops one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from partita.compiler.cost.memory import timeline
from partita.compiler.ir.program import Phase, Program
from partita.compiler.plan.document import Document, Predicted
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.uses import Use, produced
from partita.compiler.rules.rule import RuleSet
from partita.compiler.search.fusible import Fusible
from partita.compiler.search.group_seconds import GroupSeconds
from partita.compiler.search.joining import Joined, choose_joined
from partita.compiler.simulate.hidden import one_by_one, with_hidden


@dataclass(frozen=True, slots=True)
class Group:
    """Keys of nodes that become one kernel, in the program's order; what that saves."""

    keys: tuple[str, ...]
    saved_s: float


def add_fusion(plan: Plan, program: Program, rules: RuleSet) -> Plan:
    """Return ``plan`` with the groups that pay, the time and memory they save."""
    return with_groups(plan, choose_groups(plan, program, rules), choose_joined(plan))


def with_groups(
    plan: Plan, groups: Sequence[Group], joined: Sequence[Joined] = ()
) -> Plan:
    """Return ``plan`` with these groups, the time and memory they save.

    A product that is one holds all of it as long as any part is used. Where that is
    more than the plan may hold, fewer are, those that save most, by halves.
    """
    found, limit = _with_groups(plan, groups, joined), plan.options.memory_bytes
    while joined and limit is not None and found.predicted.bytes > limit:
        by_saving = sorted(joined, key=lambda group: -group.saved_s)
        most = by_saving[: len(joined) // 2]
        joined = [group for group in joined if group in most]
        found = _with_groups(plan, groups, joined)
    return found


def _with_groups(plan: Plan, groups: Sequence[Group], joined: Sequence[Joined]) -> Plan:
    fused = replace(
        plan,
        fusion=tuple(group.keys for group in groups),
        joined=tuple(group.keys for group in joined),
    )
    saved_s = sum(group.saved_s for group in (*groups, *joined))
    apart = one_by_one(plan.predicted)
    seconds = dict(apart.seconds_by_part)
    seconds["compute"] -= saved_s
    memory = timeline(fused)
    total_s = apart.seconds - saved_s
    predicted = Predicted(total_s, memory.peak_bytes, seconds, memory.at_peak)
    return replace(fused, predicted=with_hidden(predicted, fused))


def choose_groups(
    plan: Document, program: Program, rules: RuleSet
) -> tuple[Group, ...]:
    """Return the groups that pay under the placements of ``plan``.

    ``program`` is what the plan was made for, its ops taken apart and made again as
    the plan says.
    """
    return _Chooser(plan, Fusible.of(program, rules)).choose()


class _Chooser:
    def __init__(self, plan: Document, fusible: Fusible) -> None:
        self.plan = plan
        self.fusible = fusible
        self.fused_seconds = GroupSeconds(plan)
        self.used_by = self.fused_seconds.used_by

    def choose(self) -> tuple[Group, ...]:
        levels = self._levels()
        joined = {key: key for key in self.plan.order if key in self.fusible}

        def root(key: str) -> str:
            while joined[key] != key:
                joined[key] = joined[joined[key]]
                key = joined[key]
            return key

        for key in self.plan.order:
            for use in self.used_by[key]:
                if self._is_open(use) and levels[key] == levels[use.consumer]:
                    joined[root(use.consumer)] = root(key)
        members: dict[str, list[str]] = {}
        for key in joined:
            members.setdefault(root(key), []).append(key)
        for keys in members.values():
            if misfits := self.fusible.misfits(keys):
                return _Chooser(self.plan, self.fusible.without(misfits)).choose()
        priced = [self._price(self._trim(keys)) for keys in members.values()]
        return tuple(g for g in priced if len(g.keys) > 1 and g.saved_s > 0)

    def _is_open(self, use: Use) -> bool:
        """Whether producer and consumer may be one kernel."""
        if use.ref.key not in self.fusible or use.consumer not in self.fusible:
            return False
        maker, user = self.plan.nodes[use.ref.key], self.plan.nodes[use.consumer]
        halves = {node.phase is Phase.FORWARD for node in (maker, user)}
        is_boxed = produced(self.plan, use.ref) != use.wanted
        return maker.stage == user.stage and len(halves) == 1 and not is_boxed

    def _levels(self) -> dict[str, int]:
        """Return each node's level.

        It is the lowest there is; but what only elementwise ops wait for waits with
        them, so that it can be one of their group.
        """
        levels = dict.fromkeys(self.plan.order, 0)
        for key in self.plan.order:
            for use in self.used_by[key]:
                if use.consumer in levels:
                    lowest = levels[key] + (not self._is_open(use))
                    levels[use.consumer] = max(levels[use.consumer], lowest)
        for key in reversed(self.plan.order):
            uses = self.used_by[key]
            if uses and all(self._is_open(use) for use in uses):
                levels[key] = min(levels[use.consumer] for use in uses)
        return levels

    def _trim(self, keys: Sequence[str]) -> list[str]:
        """Return a group without the views that do not stand between its ops."""
        kept, size = set(keys), 0
        while size != len(kept):
            size = len(kept)
            for key in keys:
                made_of = {ref.key for ref in self.plan.nodes[key].operands}
                used_by = {use.consumer for use in self.used_by[key]}
                if key in self.fusible.free and not (kept & made_of and kept & used_by):
                    kept.discard(key)
        return [key for key in keys if key in kept]

    def _price(self, keys: Sequence[str]) -> Group:
        """Return the group with what it saves, which may be less than nothing."""
        apart_s = sum(self.plan.nodes[key].seconds for key in keys)
        return Group(tuple(keys), apart_s - self.fused_seconds(keys))
