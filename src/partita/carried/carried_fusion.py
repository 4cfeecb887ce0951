"""The fused groups of another plan, kept where their ops still can be one kernel."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from graphlib import CycleError, TopologicalSorter

from partita.compiler.ir.program import Phase, Program
from partita.compiler.plan.document import Document
from partita.compiler.plan.joined import Rows
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.uses import Use, find_uses, produced
from partita.compiler.rules.rule import RuleSet
from partita.compiler.search.fusible import Fusible
from partita.compiler.search.fusion import (
    Group,
    GroupSeconds,
    choose_groups,
    with_groups,
)
from partita.compiler.search.joined_seconds import JoinedSeconds
from partita.compiler.search.joining import Joined, choose_joined, priced


def with_fusion_like(
    plan: Plan, old: Document, program: Program, rules: RuleSet, *, more: bool
) -> Plan:
    """Return ``plan``, which fuses nothing, with the groups of ``old`` that still fit.

    They are kept whether or not they are predicted to pay here.

    Args:
        plan: the new plan, of one stage.
        old: the plan whose groups are kept.
        program: what ``plan`` is of, its ops taken apart and made again as it says.
        rules: the table of op rules.
        more: whether groups that pay are added where the old plan has none.
    """
    kept = _Kept(plan, program, rules)
    for keys in old.fusion:
        kept.offer(keys)
    if more:
        for group in choose_groups(plan, program, rules):
            kept.offer(group.keys)
    seconds = GroupSeconds(plan)
    groups: list[Group] = []
    for keys in kept.groups:
        apart_s = sum(plan.nodes[key].seconds for key in keys)
        groups.append(Group(keys, apart_s - seconds(keys)))
    return with_groups(plan, groups, _joined_like(plan, old, more=more))


def _joined_like(plan: Plan, old: Document, *, more: bool) -> list[Joined]:
    """Return the products of ``old`` that still can be one, and others that pay."""
    seconds, rows = JoinedSeconds(plan), Rows()
    taken: set[str] = set()
    found: list[Joined] = []
    others = [group.keys for group in choose_joined(plan)] if more else []
    for offered in (*old.joined, *others):
        keys = tuple(key for key in plan.order if key in offered)
        members = [seconds.joinables.of(key) for key in keys]
        known = [member for member in members if member is not None]
        is_one = len(known) == len(offered) and len({m.alike for m in known}) == 1
        if is_one and taken.isdisjoint(keys) and rows.lay(known) is None:
            taken.update(keys)
            found.append(priced(plan, keys, seconds))
    return found


class _Kept:
    """Groups that can be kernels together; ``groups`` has those taken so far."""

    def __init__(self, plan: Document, program: Program, rules: RuleSet) -> None:
        self.plan = plan
        self.groups: list[tuple[str, ...]] = []
        self._fusible = Fusible.of(program, rules)
        self._uses = [use for use in find_uses(plan) if use.consumer in plan.nodes]
        self._at = {key: position for position, key in enumerate(plan.order)}
        self._taken: dict[str, str] = {}

    def offer(self, keys: Collection[str]) -> None:
        """Take a group, in the plan's order, if its ops can be one kernel here."""
        if not self._is_one(keys):
            return
        ordered = tuple(sorted(keys, key=self._at.__getitem__))
        taken = self._taken | dict.fromkeys(ordered, ordered[0])
        if _is_acyclic(self._uses, taken):
            self._taken = taken
            self.groups.append(ordered)

    def _is_one(self, keys: Collection[str]) -> bool:
        """Whether all are small ops of one half, free, with no boxing in between."""
        fusible = self._fusible
        if not all(key in fusible and key not in self._taken for key in keys):
            return False
        halves = {self.plan.nodes[key].phase is Phase.FORWARD for key in keys}
        inside = (u for u in self._uses if u.ref.key in keys and u.consumer in keys)
        is_one = len(halves) == 1 and not fusible.misfits(keys)
        return is_one and all(
            produced(self.plan, use.ref) == use.wanted for use in inside
        )


def _is_acyclic(uses: Iterable[Use], unit_of: dict[str, str]) -> bool:
    """Whether no unit waits for itself, when each group is one unit."""
    needs: dict[str, set[str]] = {}
    for use in uses:
        maker = unit_of.get(use.ref.key, use.ref.key)
        user = unit_of.get(use.consumer, use.consumer)
        if maker != user:
            needs.setdefault(user, set()).add(maker)
    try:
        TopologicalSorter(needs).prepare()
    except CycleError:
        return False
    return True
