r"""A plan's placements as Shardy's: meshes and a ``#sdy.sharding`` for every value.

Before   down/mm/0: f32[8, 4] (S(0), P(sum))                          on dp=2,tp=2
After    "down/mm/0" = #sdy.sharding<@stage0, [{"dp"}, {}], unreduced={"tp"}>

The text is an MLIR module whose attribute ``partita.values`` holds a line for each
value, by its key. Shardy cuts a dim in equal parts, ``S(1; 4|4|2)`` each segment for
itself, and its ``unreduced`` is a sum: where the plan means another thing than the
attribute says, the line ends in a comment with the plan's own placement.
"""

from __future__ import annotations

from collections.abc import Iterator

from partita.compiler.export.exporter import Exporter
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Partial, Placement, Reduction, Split
from partita.compiler.plan.document import Document, Ref


def write_shardy(document: Document) -> str:
    """Return meshes and shardings as MLIR text."""
    meshes = [
        f"  sdy.mesh @stage{number} = <[{_axes(stage.mesh)}]>"
        for number, stage in enumerate(document.stages)
    ]
    values = list(_values(document))
    last = len(values) - 1
    lines = [
        f"  {quoted(key)} = {text}{',' if i < last else ''}{comment}"
        for i, (key, text, comment) in enumerate(values)
    ]
    head = ["module attributes {partita.values = {", *lines, "}} {"]
    return "\n".join([*head, *meshes, "}", ""])


def quoted(text: str) -> str:
    r"""Return a string literal of MLIR that stands for ``text``.

    What is neither a letter, a digit nor plain punctuation is written as ``\XX``.

    >>> print(quoted('h.0/mm/0"}'))
    "h.0/mm/0\22}"
    """
    raw = text.encode("utf-8", "surrogatepass")
    return '"' + "".join(_escaped(byte) for byte in raw) + '"'


def _escaped(byte: int) -> str:
    plain = 0x20 <= byte < 0x7F and byte not in b'"\\'
    return chr(byte) if plain else f"\\{byte:02X}"


def sharding(placement: Placement, ndim: int, mesh: Mesh, name: str) -> str:
    """Return the attribute for a tensor of ``ndim`` dims on the mesh called ``name``.

    >>> sharding(Placement.parse("(S(1), P)"), 2, Mesh(dp=2, tp=2), "m")
    '#sdy.sharding<@m, [{}, {"dp"}], unreduced={"tp"}>'
    """
    names = [quoted(axis) for axis in mesh.names]
    dims = (
        ", ".join(names[axis] for axis in placement.axes_splitting(dim))
        for dim in range(ndim)
    )
    listed = ", ".join(f"{{{axes}}}" for axes in dims)
    pairs = zip(names, placement.shardings, strict=True)
    partial = ", ".join(axis for axis, s in pairs if isinstance(s, Partial))
    owed = f", unreduced={{{partial}}}" if partial else ""
    return f"#sdy.sharding<@{name}, [{listed}]{owed}>"


def comment_of(placement: Placement) -> str:
    """Return the comment on what the attribute does not say.

    >>> comment_of(Placement.parse("(S(1; 4|4|2), B)"))
    '  // in the plan (S(1; 4|4|2), B)'
    """
    unlike = any(
        (isinstance(s, Split) and s.segments)
        or (isinstance(s, Partial) and s.reduction is not Reduction.SUM)
        for s in placement.shardings
    )
    return f"  // in the plan {placement}" if unlike else ""


def _axes(mesh: Mesh) -> str:
    return ", ".join(f"{quoted(name)}={size}" for name, size in mesh.axes)


def _values(document: Document) -> Iterator[tuple[str, str, str]]:
    """Yield key, attribute and comment of every value."""
    for key in document.order:
        node = document.nodes[key]
        mesh = document.stages[node.stage].mesh
        results = zip(node.types, node.signature.results, strict=True)
        for index, (type_, placement) in enumerate(results):
            if type_ is not None and placement is not None:
                ndim, name = len(type_.shape), f"stage{node.stage}"
                text = sharding(placement, ndim, mesh, name)
                yield str(Ref(key, index)), text, comment_of(placement)


EXPORTER = Exporter(
    "shardy", "a #sdy.sharding for every value, for Shardy", ".mlir", write_shardy
)
