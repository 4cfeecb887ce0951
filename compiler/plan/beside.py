"""Which messages of a plan only leave it, so that nothing needs to wait for them.

The wait for a sum, a gradient's above all, stands at the end (passes/sink_waits.py),
also where ranks exchange what they add up. What stands between is computed while the
message passes, as far as the machine can do both (``Hardware.overlap``). Other messages
keep what they are given in memory until they are waited for: how late that is, the plan
says (``Document.late``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from partita.compiler.cost.step import StepKind
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.ir.program import OutputKind, Phase
from partita.compiler.plan.document import Boxing, Document
from partita.compiler.plan.emitted import completing_units


@dataclass(frozen=True)
class Beside:
    """Which boxings of a plan of one stage nothing needs to wait for, by their keys."""

    document: Document

    @cached_property
    def sums(self) -> frozenset[str]:
        """Those that end in a sum."""
        sums = [boxing for boxing in self.document.boxings if ends_in_sum(boxing)]
        last = self._last if sums else frozenset[str]()
        return frozenset(boxing.key for boxing in sums if self._leaves(boxing, last))

    @cached_property
    def others(self) -> frozenset[str]:
        """Those that send something, of which no kernel has a view inside."""
        fused = {key for keys in self.document.fusion for key in keys}
        last = self._views_that_leave(fused) if fused else self._last
        return frozenset(
            boxing.key
            for boxing in self.document.boxings
            if sends(boxing)
            and not ends_in_sum(boxing)
            and not boxing.enters
            and self._leaves(boxing, last)
        )

    def _leaves(self, boxing: Boxing, last: Set[str]) -> bool:
        """Whether nothing takes what it makes but views, these, that leave."""
        nodes = self.document.nodes
        return all(user not in nodes or user in last for user in boxing.consumers)

    @cached_property
    def _last(self) -> Set[str]:
        """The views of one tensor that leave as they are, or views of them do."""
        return self._views_that_leave(frozenset())

    def _views_that_leave(self, fused: Set[str]) -> Set[str]:
        """Return those views but for what ``fused`` calls make, several in a kernel."""
        views, waited_for = self._views, self._waited_for | fused
        for view in reversed([key for key in self.document.order if key in views]):
            if view in waited_for:
                waited_for.add(views[view])
        return views.keys() - waited_for

    @cached_property
    def _views(self) -> Mapping[str, str]:
        """The node that each view of one tensor is of."""
        return {
            key: node.operands[0].key
            for key, node in self.document.nodes.items()
            if not node.seconds and len(node.operands) == 1 and node.role is None
        }

    @cached_property
    def _waited_for(self) -> set[str]:
        """The nodes whose results are boxed, or taken by what is no such view."""
        views, boxings = self._views, self.document.boxings
        return {boxing.producer for boxing in boxings} | {
            ref.key
            for key, node in self.document.nodes.items()
            if key not in views
            for ref in node.operands
        }


def sums_beside(document: Document) -> frozenset[str]:
    """Return the keys of boxings that end in a sum which nothing waits for.

    ``document`` is a plan of one stage.
    """
    return Beside(document).sums


def completed_beside(document: Document) -> tuple[int, ...]:
    """Return the numbers of ``completing_units`` that begin while a backward runs.

    Each sends once, and gradients alone, which the last backward makes whole. A stage
    whose backward another one waits for has none: messages would hold that up, and pass
    behind it for nothing, while the stages before go backward. Nor has one on a machine
    that cannot send and compute at once.
    """
    is_waited_for = any(o.kind is OutputKind.SENT_BACKWARD for o in document.outputs)
    if is_waited_for or not load_hardware(document.hardware).overlap:
        return ()
    units = completing_units(document)
    return tuple(at for at, unit in enumerate(units) if _begins_beside(document, unit))


def _begins_beside(document: Document, unit: Sequence[Boxing]) -> bool:
    return all(
        sum(step.bytes > 0 for step in boxing.lowering) == 1
        and document.nodes[boxing.producer].phase is not Phase.FORWARD
        for boxing in unit
    )


def leaving_alone(document: Document) -> frozenset[str]:
    """Return the keys of boxings that send something, and that nothing waits for.

    They are no sums, and no kernel has a view of what they make inside. ``document`` is
    a plan of one stage.
    """
    return Beside(document).others


def sends(boxing: Boxing) -> bool:
    """Whether a boxing sends anything to other ranks."""
    return any(step.bytes for step in boxing.lowering)


def ends_in_sum(boxing: Boxing) -> bool:
    """Whether the last step of a boxing is an all-reduce."""
    return bool(boxing.lowering) and boxing.lowering[-1].kind == StepKind.ALL_REDUCE
