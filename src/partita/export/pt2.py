"""What ranks run, through ``torch.export``: a zip of ``.pt2`` files and what they are.

``manifest.json`` says for every rank which files it runs, null where there is nothing
to do, and for every file what enters and leaves, in order: kind, name, the type of the
rank's shard, its placement. Weights are inputs. ``constants.pt`` has, whole, those that
no state dict holds, by kind and name: what the model's code makes, and buffers that are
not persistent. Collectives are ``_c10d_functional``
ops, whose last argument is the name of a group, ``stage0/tp``: put ``group.group_name``
of a real one in its place. Ops called ``partita.*`` want Partita imported,
those of the model's own, ``model_ops``, what registers them, before a file is loaded.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from partita.compiler.ir.layout import shard_shape
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.out_of_place import make_functional
from partita.compiler.ir.program import InputKind, InputRole, OutputRole
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.plan import Plan
from partita.compiler.rules.rule import RuleSet
from partita.compiler.rules.table import default_rules
from partita.export.exporter import ProgramExporter
from partita.export.function_source import model_ops, own_ops
from partita.export.not_saved import buffers_not_saved, constants_of, with_values
from partita.export.rank_kinds import RankKind, StageKinds
from partita.lowering import capture_for, lower

_CONSTANTS = "constants.pt"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # so that equal plans make equal files


@dataclass
class _Files:
    """The files so far, and which of them holds a program.

    Ranks share a file where their programs are one and do not ask where they stand.
    """

    contents: dict[str, bytes] = field(default_factory=dict[str, bytes])
    manifest: dict[str, Any] = field(default_factory=dict[str, Any])
    known: dict[object, tuple[str, LocalProgram]] = field(
        default_factory=dict[object, "tuple[str, LocalProgram]"]
    )

    def add(self, wish: str, local: LocalProgram) -> str | None:
        """Return the name of the file that holds ``local``; none if it makes nothing.

        The first stage has nobody to hand a gradient to; torch saves no empty program.
        """
        if not local.outputs:
            return None
        asks = any(role.kind is InputKind.COORDINATE for role in local.inputs)
        key = id(local.graph_module), local.coordinates if asks else None
        if key not in self.known:
            name = f"{wish}.{len(self.contents)}.pt2"
            self.known[key] = name, local  # kept, so that its id stays its own
            self.contents[name] = exported(local)
            self.manifest[name] = {
                "inputs": list(_entries(local, local.inputs)),
                "outputs": list(_entries(local, local.outputs)),
                "partita_ops": sorted(own_ops(local)),
                "model_ops": sorted(model_ops(local)),
            }
        return self.known[key][0]


def write_pt2(
    model: torch.nn.Module, plan: Plan, rules: RuleSet = default_rules
) -> bytes:
    """Return the zip.

    Raises:
        BadOptions: for constants without values.
        BadPlan: when the plan is of another model.
    """
    files = _Files()
    ranks: dict[str, list[dict[str, Any]]] = {str(r): [] for r in range(plan.mesh.size)}
    lowered = lower(capture_for(model, plan, rules=rules), plan, rules)
    every = [StageKinds.of(own) for own in lowered]
    constants = _constants(model, plan, every)
    for number, (own, stage) in enumerate(zip(every, plan.stages, strict=True)):
        for rank, local, kind in zip(stage.ranks, own.locals, own.kind_of, strict=True):
            made = _of_rank(files, number, own.kinds[kind], local.coordinates)
            ranks[str(rank)].append(made)
    manifest = {
        "mesh": str(plan.mesh),
        "microbatches": plan.microbatches,
        "schedule": list(plan.schedule.rows),
        "stages": [{"mesh": str(s.mesh), "ranks": s.ranks} for s in plan.stages],
        "constants": _CONSTANTS,
        "files": files.manifest,
        "ranks": ranks,
    }
    text = json.dumps(manifest, indent=1, sort_keys=True) + "\n"
    named = {"manifest.json": text.encode(), _CONSTANTS: constants}
    return _zipped({**named, **files.contents})


def _constants(
    model: torch.nn.Module, plan: Plan, every: Sequence[StageKinds]
) -> bytes:
    """Return what enters and no state dict holds, as ``torch.save`` writes it."""
    made = constants_of(local for own in every for local in own.locals[:1])
    by_kind = {
        InputKind.BUFFER: buffers_not_saved(model, plan),
        InputKind.CONSTANT: made,
    }
    held = io.BytesIO()
    alone = {
        str(kind): {
            name: tensor.detach().cpu().clone()  # of a view, all it is of were written
            for name, tensor in with_values(tensors, "pt2").items()
        }
        for kind, tensors in by_kind.items()
    }
    torch.save(alone, held)
    return held.getvalue()


def _of_rank(
    files: _Files, stage: int, kind: RankKind, here: tuple[int, ...]
) -> dict[str, Any]:
    """Return which files the rank at ``here`` runs of a stage."""

    def added(word: str, programs: Sequence[LocalProgram]) -> list[str | None]:
        own = [replace(program, coordinates=here) for program in programs]
        return [files.add(f"stage{stage}.{word}", program) for program in own]

    return {
        "stage": stage,
        "coordinates": here,
        "steps": added("step", kind.steps),
        "bringing": added("bring", kind.bringing),
        "completing": added("complete", kind.completing),
    }


def exported(local: LocalProgram) -> bytes:
    """Return one program as ``torch.export.save`` writes it."""
    values = zip(local.inputs, local.input_types, local.input_placements, strict=True)
    arguments = tuple(_example(local, *value) for value in values)
    graph = fx.Graph()
    graph.output(graph.graph_copy(local.graph_module.graph, {}))
    make_functional(graph)
    module = fx.GraphModule(local.graph_module, graph)
    with torch.no_grad():
        program = torch.export.export(module, arguments, strict=False)
    for node in program.graph.nodes:
        node.meta.pop("from_node", None)  # it has addresses, other ones each time
    held = io.BytesIO()
    torch.export.save(program, held)
    return held.getvalue()


def _example(
    local: LocalProgram,
    role: InputRole,
    type_: TensorType | None,
    placement: Placement | None,
) -> torch.Tensor | int:
    if type_ is None or placement is None:
        return local.coordinates[local.mesh.axis(role.name)]
    shape = shard_shape(type_.shape, placement, local.mesh, local.coordinates)
    # They are written to the file: not what memory held before.
    return torch.zeros(shape, dtype=type_.dtype)


def _entries(
    local: LocalProgram, roles: Sequence[InputRole] | Sequence[OutputRole]
) -> Iterator[dict[str, str | None]]:
    """Yield what is known of inputs or outputs, in order."""
    is_input = roles is local.inputs
    types = local.input_types if is_input else local.output_types
    placements = local.input_placements if is_input else local.output_placements
    for role, type_, placement in zip(roles, types, placements, strict=True):
        shape = None
        if type_ is not None and placement is not None:
            here = local.mesh, local.coordinates
            own = shard_shape(type_.shape, placement, *here)
            shape = str(TensorType(own, type_.dtype))
        yield {
            "kind": str(role.kind),
            "name": role.name,
            "type": shape,
            "placement": None if placement is None else str(placement),
        }


def _zipped(files: dict[str, bytes]) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return held.getvalue()


EXPORTER = ProgramExporter(
    "pt2",
    "what every rank runs, through torch.export, in a zip",
    ".zip",
    write_pt2,
    is_text=False,
)
