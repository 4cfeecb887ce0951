"""Move the boundaries of an arrangement until each of its stages fits.

It is taken that what does not fit does not with more calls either. So a stage that does
not fit is cut shorter, by halving, first from the first stage on, and what it loses is
the next one's; then from the last stage on, where what is left to it does not fit.
"""

from __future__ import annotations

from collections.abc import Callable

from partita.compiler.ir.mesh import Mesh
from partita.compiler.search.arrange import Arranger, OutOfTime
from partita.compiler.search.rearrange import Place


def fitting(arranger: Arranger, place: Place) -> Place | None:
    """Return an arrangement near ``place`` whose stages fit, if one is found so.

    Stages of one row are each given all of it: where there are several, what is found
    may not fit together.

    Raises:
        OutOfTime: when the time has run out.
    """
    ends, meshes = list(place[0]), list(place[1])
    if _from_first(arranger, ends, meshes) or _from_last(arranger, ends, meshes):
        return tuple(ends), tuple(meshes)
    return None


def _from_first(arranger: Arranger, ends: list[int], meshes: list[Mesh]) -> bool:
    """Move where stages end, and tell whether they all fit, the last one too."""
    last, begin = len(ends) - 1, 0
    for number in range(last):
        most = ends[-1] - (last - number)
        wanted = min(max(ends[number], begin + 1), most)
        end = _farthest(
            lambda end, n=number, b=begin: _mesh(arranger, n, b, end, meshes[n]),
            begin,
            wanted,
        )
        if end is None:
            return False
        ends[number], meshes[number] = end
        begin = end[0]
    mesh = _mesh(arranger, last, begin, ends[-1], meshes[last])
    if mesh is None:
        return False
    meshes[last] = mesh
    return True


def _from_last(arranger: Arranger, ends: list[int], meshes: list[Mesh]) -> bool:
    """Move where stages begin, and tell whether they all fit, the first one too."""
    end = ends[-1]
    for number in range(len(ends) - 1, 0, -1):
        wanted = max(min(ends[number - 1], end - 1), number)
        begin = _farthest(
            lambda begin, n=number, e=end: _mesh(arranger, n, begin, e, meshes[n]),
            end,
            wanted,
        )
        if begin is None:
            return False
        ends[number - 1], meshes[number] = begin
        end = begin[0]
    mesh = _mesh(arranger, 0, 0, end, meshes[0])
    if mesh is None:
        return False
    meshes[0] = mesh
    return True


def _farthest(
    fits: Callable[[int], Mesh | None], empty: int, wanted: int
) -> tuple[int, Mesh] | None:
    """Return the boundary nearest to the wanted one with which a stage fits.

    It lies between there and the stage's other boundary, ``empty``.
    """
    mesh = fits(wanted)
    if mesh is not None:
        return wanted, mesh
    found, near, far = None, empty, wanted
    while abs(far - near) > 1:
        middle = (near + far) // 2
        mesh = fits(middle)
        if mesh is None:
            far = middle
        else:
            found, near = (middle, mesh), middle
    return found


def _mesh(
    arranger: Arranger, number: int, begin: int, end: int, first: Mesh
) -> Mesh | None:
    """Return a mesh on which a stage fits, the ``first`` if that one does."""
    stages, live = arranger.stages, arranger.live[number]
    own = arranger.form.meshes[number]
    for mesh in (first, *(other for other in own if other != first)):
        if stages.clock.left_s <= 0:
            raise OutOfTime
        below_s = arranger.best.seconds
        if stages.cost(begin, end, mesh, stages.limit, live, below_s) is not None:
            return mesh
    return None
