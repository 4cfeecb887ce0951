"""Move the boundaries of an arrangement while that makes its step faster.

One boundary at a time is moved by one call, two, four, ..., either way, and one stage
at a time gets another mesh. What is found has no faster neighbour of that kind.
"""

from __future__ import annotations

from collections.abc import Iterator

from partita.compiler.ir.mesh import Mesh
from partita.compiler.search.arrange import Arranger, OutOfTime

Place = tuple[tuple[int, ...], tuple[Mesh, ...]]
"""Where stages end, and their meshes."""

_FARTHEST = 16


def improve(arranger: Arranger, place: Place) -> None:
    """Offer better and better arrangements, from one on.

    Raises:
        OutOfTime: when there may be more.
    """
    seconds, improved = arranger.offer(*place), True
    while improved:
        improved = False
        for near in _neighbours(arranger, place):
            if arranger.stages.clock.left_s <= 0:
                raise OutOfTime
            took = arranger.offer(*near, below_s=seconds)
            if took < seconds:
                place, seconds, improved = near, took, True
                break


def _neighbours(arranger: Arranger, place: Place) -> Iterator[Place]:
    ends, meshes = place
    begins = (0, *ends)
    step = _FARTHEST
    while step:
        for number in range(len(ends) - 1):
            for end in (ends[number] - step, ends[number] + step):
                if begins[number] < end < ends[number + 1]:
                    yield (*ends[:number], end, *ends[number + 1 :]), meshes
        step //= 2
    for number, own in enumerate(arranger.form.meshes):
        for mesh in own:
            if mesh != meshes[number]:
                yield ends, (*meshes[:number], mesh, *meshes[number + 1 :])
