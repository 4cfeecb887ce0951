"""Search a mesh of many axes in steps: two axes, then one more at a time.

On three axes a node has hundreds of signatures, and tables of their pairs outgrow
memory and patience. So the two innermost axes are decided first, as if the others had
one rank; then every other axis, from the inside out, given what is decided. What comes
out is legal and good, and nothing is known of how far from the best it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import Program
from partita.compiler.ir.sbp import Broadcast, Placement
from partita.compiler.rules.rule import RuleSet
from partita.compiler.search.candidates import Candidates
from partita.compiler.search.pins import parse_pin
from partita.compiler.search.pose import Posed, pose
from partita.compiler.search.within import NOTHING_DECIDED, Within

MOST_AXES = 2
"""So many axes of more than one rank are searched at once."""

Choose = Callable[[Posed], Sequence[int]]


def steps_of(mesh: Mesh) -> list[tuple[int, ...]]:
    """Return the axes that are decided in each step.

    >>> steps_of(Mesh(dp=2, cp=2, tp=2)), steps_of(Mesh(dp=2, pod=1, tp=2))
    ([(1, 2), (0,)], [(0, 2)])
    """
    axes = [axis for axis, size in enumerate(mesh.sizes) if size > 1]
    inner, outer = axes[-MOST_AXES:], axes[:-MOST_AXES]
    return [tuple(inner), *((axis,) for axis in reversed(outer))]


def choose_by_axes(
    program: Program,
    rules: RuleSet,
    mesh: Mesh,
    hardware: Hardware,
    pins: Mapping[str, str],
    optimizer: str,
    choose: Choose,
    wide_sums: bool = True,
) -> tuple[Posed, Sequence[int]]:
    """Return the last step's problem, which is that of the whole mesh, and its choices.

    Args:
        program: the logical program.
        rules: the rule table.
        mesh: the ranks.
        hardware: what is priced by.
        pins: placements that are fixed.
        optimizer: what updates the parameters.
        choose: picks a choice per node of a posed problem.
        wide_sums: as for ``pose``.

    Raises:
        BadOptions: for a pin that is unknown or illegal.
        NoSolution: when a pin leaves a node nothing to choose.
    """
    found: tuple[Posed, Sequence[int]] | None = None
    within, decided = NOTHING_DECIDED, set[int]()
    for step in steps_of(mesh):
        decided |= set(step)
        sizes = {
            name: size if axis in decided else 1
            for axis, (name, size) in enumerate(mesh.axes)
        }
        part = Mesh(**sizes)
        candidates = Candidates(program.with_mesh(part), rules, part, hardware, within)
        closed = [a for a, size in enumerate(part.sizes) if size < mesh.sizes[a]]
        posed = pose(candidates, _projected(pins, closed), optimizer, wide_sums)
        choices = choose(posed)
        found = posed, choices
        taken = {
            node.key: node.choices[choice]
            for node, choice in zip(posed.problem.nodes, choices, strict=True)
        }
        within = Within(
            tuple(sorted(decided)),
            {key: choice.signature for key, choice in taken.items()},
            {key: own.held.optimizer for key, own in taken.items() if own.held},
        )
    assert found is not None
    return found


def _projected(pins: Mapping[str, str], closed: Sequence[int]) -> dict[str, str]:
    """Return the pins with nothing split on axes that are not decided yet."""
    return {
        name: str(parse_pin(name, text).map(lambda p: _whole_on(p, closed)))
        for name, text in pins.items()
    }


def _whole_on(placement: Placement, axes: Sequence[int]) -> Placement:
    for axis in axes:
        if axis < placement.ndim:
            placement = placement.with_axis(axis, Broadcast())
    return placement
