"""How a plan made like another one compares with it, thing by thing.

Things are parameters by name, calls by stable key, boxings that are made again for the
backward, groups of ops that are one kernel and boxings that are sent together by their
first. Meshes may be of other sizes and have other axes: placements are compared on the
axes on which both have several ranks. Where each has such axes and none is in both, all
of it has moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from partita.compiler.ir.sbp import Placement, Sharding
from partita.compiler.plan.document import Document

Held = tuple[tuple[Sharding, ...] | None, ...] | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reapplied:
    """What became of the old plan's decisions.

    Attributes:
        matched: things that are placed, or grouped, as they were.
        moved: those that are so otherwise, by name or key.
        new: those that only the new plan has; they were searched.
        gone: those that only the old plan has.
        renamed: what those are called now that the old plan calls otherwise.
        unpinned: the old plan's pins that name nothing now, or no axes of this mesh.
        axes: those of the old plan with several ranks that the new mesh has not: what
            lay along them is searched again.

    >>> str(Reapplied(("a", "b"), ("c",), ("d",), (), {"A": "a"}))
    '2 matched, 1 moved, 1 new: searched again; 1 has another name'
    """

    matched: tuple[str, ...]
    moved: tuple[str, ...]
    new: tuple[str, ...]
    gone: tuple[str, ...]
    renamed: Mapping[str, str] = field(default_factory=dict[str, str])
    unpinned: tuple[str, ...] = ()
    axes: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [
            f"{len(self.matched)} matched",
            f"{len(self.moved)} moved",
            f"{len(self.new)} new",
        ]
        if self.gone:
            parts.append(f"{len(self.gone)} gone")
        again = ": searched again" if self.moved or self.new else ""
        names = {0: "", 1: "; 1 has another name"}
        others = f"; {len(self.renamed)} have other names"
        told = ", ".join(parts) + again + names.get(len(self.renamed), others)
        pins = "".join(
            f"; its pin {name!r} means nothing here" for name in self.unpinned
        )
        axes = "".join(f"; this mesh has no axis {name!r}" for name in self.axes)
        return told + axes + pins


def compare_reapplied(old: Document, new: Document) -> Reapplied:
    """Return what became of ``old``'s decisions in ``new``."""
    splitting = _splitting(old), _splitting(new)
    names = splitting[0] & splitting[1]
    before, after = dict(_held(old, names)), dict(_held(new, names))
    is_alike = splitting[0] == splitting[1] and _axes(old) == _axes(new)
    if is_alike:  # what is sent along other axes is called otherwise
        before |= dict(_together(old))
        after |= dict(_together(new))
    both = [name for name in after if name in before]
    # Where no axis is called as it was, nothing says where a thing would be as it was.
    is_told = bool(names) or not all(splitting)
    same = {name for name in both if is_told and before[name] == after[name]}
    return Reapplied(
        tuple(name for name in both if name in same),
        tuple(name for name in both if name not in same),
        tuple(name for name in after if name not in before),
        tuple(name for name in before if name not in after),
        axes=tuple(sorted(splitting[0] - {a for axes in _axes(new) for a in axes})),
    )


def _splitting(document: Document) -> set[str]:
    """Return the names of the axes with several ranks: one has nothing to split."""
    axes = (axis for stage in document.stages for axis in stage.mesh.axes)
    return {name for name, size in axes if size > 1}


def _held(document: Document, names: set[str]) -> Iterator[tuple[str, Held]]:
    """Yield parameters and calls with their placements on the axes ``names``."""

    def shown(placements: Sequence[Placement | None], stage: int) -> Held:
        axes = document.stages[stage].mesh.names
        return tuple(p and on_axes(p, axes, names) for p in placements)

    for name, parameter in document.parameters.items():
        own = parameter.placements
        held = (own.storage, own.gradient, own.optimizer)
        yield name, shown(held, min(parameter.homes, default=0))
    for key, node in document.nodes.items():
        if node.role is None:
            signature = node.signature
            yield key, shown((*signature.operands, *signature.results), node.stage)
    for key in document.recompute:
        if key not in document.nodes:  # its clone is a call of its own
            yield f"{key} made again", ()
    for group in document.fusion:
        yield f"{group[0]} fused", group
    for group in document.joined:
        yield f"{group[0]} joined", group


def _axes(document: Document) -> set[tuple[str, ...]]:
    """Return the axes of all stages, in their order."""
    return {stage.mesh.names for stage in document.stages}


def _together(document: Document) -> Iterator[tuple[str, Held]]:
    """Yield the buckets by their first boxings."""
    for keys in document.buckets:
        yield f"{keys[0]} sent together", keys


def on_axes(
    placement: Placement, axes: Sequence[str], names: set[str]
) -> tuple[Sharding, ...]:
    """Return what a placement does on the axes of a mesh that are among ``names``.

    They are in the order of the names, so that meshes of another order compare.

    >>> p = Placement.parse("(S(0), B)")
    >>> [str(s) for s in on_axes(p, ("tp", "dp"), {"dp", "tp"})]
    ['B', 'S(0)']
    """
    pairs = zip(axes, placement.shardings, strict=True)
    return tuple(
        sharding
        for name, sharding in sorted(pairs, key=lambda p: p[0])
        if name in names
    )
