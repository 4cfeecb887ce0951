"""What a plan must tell of its ops: which are repeated on several ranks, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import fx

from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import info
from partita.compiler.ir.sbp import Broadcast
from partita.compiler.ir.signature import Signature
from partita.compiler.plan.document import Node
from partita.compiler.plan.reported import DerivedRow, Reported, ReportKind
from partita.compiler.rules.signatures import axis_options, fits
from partita.compiler.search.candidates import Candidates
from partita.compiler.search.chosen import ChosenNode
from partita.compiler.search.pose import Posed

_WHY = {
    ReportKind.UNKNOWN: "no rule: every tensor whole on every rank",
    ReportKind.DERIVED: "no rule in the table: one was derived by experiment",
    ReportKind.WHOLE: "its rule offers no split of these shapes along some axis",
}


def find_reported(
    posed: Posed, chosen: Mapping[fx.Node, ChosenNode], nodes: Mapping[str, Node]
) -> tuple[Reported, ...]:
    """Return what must be told of ops, the slowest first.

    Args:
        posed: the problem, which knows what each node might have done.
        chosen: what its nodes do, those that are not taken apart.
        nodes: what the plan's nodes do, by key.
    """
    candidates = posed.candidates
    found: dict[tuple[ReportKind, str], list[str]] = {}
    for op, unknown in candidates.unknown.items():
        found[ReportKind.UNKNOWN, op] = [info(node).key for node in unknown]
    for rule, derived in candidates.derived.items():
        keys = found.setdefault((ReportKind.DERIVED, rule.op), [])
        keys += [info(node).key for node in derived]
    known = {key for keys in found.values() for key in keys}
    for node in _without_split(candidates, chosen):
        key = info(node).key
        if key not in known:
            found.setdefault((ReportKind.WHOLE, nodes[key].op), []).append(key)
    told = [
        Reported(op, _WHY[kind], tuple(keys), kind, sum(nodes[k].seconds for k in keys))
        for (kind, op), keys in found.items()
    ]
    return tuple(sorted(told, key=lambda item: -item.seconds))


def _without_split(
    candidates: Candidates, chosen: Mapping[fx.Node, ChosenNode]
) -> Iterator[fx.Node]:
    """Yield nodes that an axis repeats because their row offers it nothing else."""
    known: dict[tuple[int, int], bool] = {}  # equal calls that choose alike
    for node, read in candidates.read.items():
        decided = chosen.get(node)
        if decided is None or not decided.seconds:
            continue
        signature = decided.signature
        one = id(read), id(signature)
        if one not in known:
            axes = _axes_without_split(candidates, node)
            known[one] = any(_repeats(signature, axis) for axis in axes)
        if known[one]:
            yield node


def _axes_without_split(candidates: Candidates, node: fx.Node) -> frozenset[int]:
    """Return the axes of more than one rank that the row of a call cannot split."""
    results = candidates.calls[node].results
    is_large = any(t is not None and t.numel > 1 for t in results)
    rule, factors = candidates.read[node]
    is_expanded = any(factor in factors.sizes for factor in factors.expanded)
    if not is_large or (is_expanded and rule.expand):
        return frozenset()
    splits = [o for o in axis_options(rule, factors, {}) if o.factor is not None]
    return frozenset(
        axis
        for axis, size in enumerate(candidates.mesh.sizes)
        if size > 1
        and not any(fits(factors, (option,), Mesh(alone=size)) for option in splits)
    )


def _repeats(signature: Signature, axis: int) -> bool:
    """Whether every rank along the axis does the same."""
    return all(
        placement is None or isinstance(placement.shardings[axis], Broadcast)
        for placement in (*signature.operands, *signature.results)
    )


def derived_rows(candidates: Candidates) -> tuple[DerivedRow, ...]:
    """Return the rows that the plan stands on and the rule table lacks."""
    found: list[DerivedRow] = []
    for rule, nodes in candidates.derived.items():
        assert isinstance(rule.dims, str)
        assert isinstance(rule.linear, str)
        reduce = None if rule.reduce is None else str(rule.reduce)
        keys = tuple(info(node).key for node in nodes)
        found.append(DerivedRow(rule.op, rule.dims, rule.linear, reduce, keys))
    return tuple(found)
