"""A plan's placements as Python for PyTorch's own DTensor; the file needs torch alone.

Parameters, buffers and inputs are placed as in the plan, and a parameter that the plan
uses in another placement is redistributed in front of each use, which is how ZeRO-3 is
written with DTensors. What lies between them DTensor's own rules decide, or what stands
in for them where they are missing or wrong (``dtensor_source``), so the numbers are
those of the model, and the collectives need not be those of the plan.

Of a pipeline every stage has tables of its own and a mesh of its own ranks. DTensor has
no step that goes from mesh to mesh, so the file of a pipeline says so where it would
run.
"""

from __future__ import annotations

from collections.abc import Iterator

from partita.compiler.capture.mixed_precision import PRECISIONS
from partita.compiler.export.dtensor_source import (
    HEAD,
    STAGED_HEAD,
    STAGED_TAIL,
    TAIL,
)
from partita.compiler.export.exporter import Exporter
from partita.compiler.ir.program import InputKind
from partita.compiler.ir.sbp import Partial, Placement, Split
from partita.compiler.plan.document import Document
from partita.compiler.plan.stages import stage_documents


def write_dtensor(document: Document) -> str:
    """Return the Python source; of a pipeline it places tensors and runs nothing."""
    if len(document.stages) > 1:
        return _write_stages(document)
    mesh = document.mesh
    lines = [
        HEAD,
        f"MODEL = {document.model.class_name!a}",
        f"AXES = {mesh.names!r}",
        f"SIZES = {mesh.sizes!r}",
        _precision(document),
    ]
    for name, (what, placements) in _tables(document).items():
        if name != "shared":
            lines += ["", f"# {what}", *_table(f"{name.upper()} = ", placements)]
    return "\n".join(lines) + "\n" + TAIL


def _write_stages(document: Document) -> str:
    model = f"MODEL = {document.model.class_name!a}"
    lines = [STAGED_HEAD, model, _precision(document), "STAGES = ["]
    parts = stage_documents(document)
    for stage, part in zip(document.stages, parts, strict=True):
        lines += ["    {"]
        lines += [f'        "ranks": {stage.ranks!r},']
        lines += [f'        "axes": {stage.mesh.names!r},']
        lines += [f'        "sizes": {stage.mesh.sizes!r},']
        for name, (what, placements) in _tables(part).items():
            table = (f"# {what}", *_table(f'"{name}": ', placements, ","))
            lines += [f"        {line}" for line in table]
        lines += ["    },"]
    return "\n".join([*lines, "]"]) + "\n" + STAGED_TAIL


def _precision(document: Document) -> str:
    precision = document.options.precision
    return f"PRECISION = {None if precision is None else PRECISIONS[precision]}"


def _tables(document: Document) -> dict[str, tuple[str, dict[str, Placement]]]:
    """Return what is placed of a plan, or of a stage: by table what it says and all."""
    held: dict[str, Placement] = {}
    used: dict[str, Placement] = {}
    for name, parameter in document.parameters.items():
        placements = parameter.placements
        stays = placements.optimizer or placements.storage
        held |= dict.fromkeys((name, *parameter.aliases), stays)
        if printed(placements.use) != printed(stays):
            used |= dict.fromkeys((name, *parameter.aliases), placements.use)
    buffers = {
        known: buffer.placement
        for name, buffer in document.buffers.items()
        for known in (name, *buffer.aliases)
    }
    return {
        "held": ("Parameters, as they are held and updated.", held),
        "used": ("Those that are used in another placement.", used),
        "shared": (
            "Parameters and buffers of other stages, as they are used here.",
            _entering(document, InputKind.SHARED),
        ),
        "buffers": ("Buffers.", buffers),
        "inputs": (
            "Tensors of a call, by argument and place in it.",
            _entering(document, InputKind.INPUT),
        ),
    }


def _entering(document: Document, kind: InputKind) -> dict[str, Placement]:
    return {
        node.role.name: placement
        for node in document.nodes.values()
        if node.role is not None and node.role.kind is kind
        for placement in node.signature.results
        if placement is not None
    }


def printed(placement: Placement) -> str:
    """Return a placement as Python that makes DTensor's.

    DTensor redistributes nothing to a partial value: it stays whole there.

    >>> printed(Placement.parse("(S(0), B, P(sum))"))
    '[Shard(0), Replicate(), Replicate()]'
    """
    entries = (
        f"Shard({sharding.dim})" if isinstance(sharding, Split) else "Replicate()"
        for sharding in placement.shardings
    )
    return f"[{', '.join(entries)}]"


def _table(name: str, placements: dict[str, Placement], end: str = "") -> Iterator[str]:
    yield f"{name}{{"
    for key, placement in placements.items():
        unlike = (
            isinstance(s, Partial) or (isinstance(s, Split) and s.segments)
            for s in placement.shardings
        )
        note = f"  # {placement}" if any(unlike) else ""
        yield f"    {key!a}: {printed(placement)},{note}"
    yield f"}}{end}"


EXPORTER = Exporter(
    "dtensor", "placements as Python, for PyTorch's DTensor", ".py", write_dtensor
)
