"""What every rank runs, as one readable Python file that needs PyTorch alone.

Ranks with equal programs share a function; where they stand on the mesh enters as
numbers. Partita's own ops (attention, random numbers and the like) come along as the
functions that they are.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from partita.compiler.errors import BadOptions
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.program import InputKind, OutputKind
from partita.compiler.ir.sbp import Partial, Placement, Reduction, Split
from partita.compiler.plan.plan import Plan
from partita.export.exporter import ProgramExporter
from partita.export.function_source import Functions, own_ops
from partita.export.op_sources import OpSources
from partita.export.python_template import HEAD, MIDDLE, TAIL
from partita.lowering import Lowered, capture_for, lower

_IMPORTS = (
    "import torch",
    "import torch.distributed as dist",
    "from torch import nn",
    "from torch.distributed.device_mesh import init_device_mesh",
)
_OWN = frozenset(
    "AXES BUFFERS BUFFERS_NOT_SAVED CONSTANTS CUTS INPUTS MICROBATCHES Model "
    "PARAMETERS PROGRAMS PROGRAM_OF_RANK SIZES TRAINED base64 constant "
    "init_device_mesh itertools main nn shard sys zlib".split()
)


@dataclass(frozen=True)
class _Ranks:
    """What ranks run that run the same.

    Attributes:
        local: the step.
        bringing: what brings parameters into it.
        completing: what completes sums over microbatches.
    """

    local: LocalProgram
    bringing: tuple[LocalProgram, ...]
    completing: tuple[LocalProgram, ...]

    def programs(self, number: int) -> Iterator[tuple[str, LocalProgram]]:
        """Yield all programs with the names of their functions."""
        yield f"step_{number}", self.local
        yield from ((f"bring_{number}_{i}", p) for i, p in enumerate(self.bringing))
        yield from (
            (f"complete_{number}_{i}", p) for i, p in enumerate(self.completing)
        )


def write_python(model: torch.nn.Module, plan: Plan) -> bytes:
    """Return the file.

    Raises:
        BadOptions: for a pipeline, and for values that the file cannot hold.
        BadPlan: when the plan is of another model.
    """
    if len(plan.stages) > 1:
        raise BadOptions(
            "--to python: the plan has stages, which hand each other tensors while "
            "they run; want a plan of a mesh without an axis pp, or --to pt2"
        )
    (lowered,) = lower(capture_for(model, plan), plan)
    every, numbers = _classes(lowered)
    return _write(model, plan, every, numbers).encode()


def _classes(lowered: Lowered) -> tuple[list[_Ranks], list[int]]:
    """Return what ranks run, each kind once, and by rank which kind it is of."""
    found: dict[int, int] = {}
    every: list[_Ranks] = []
    numbers: list[int] = []
    for local in lowered.of_all():
        kind = id(local.graph_module)
        if kind not in found:
            found[kind] = len(every)
            here = local.coordinates
            bringing = lowered.bringing_at(here)
            every.append(_Ranks(local, bringing, lowered.completing_at(here)))
        numbers.append(found[kind])
    return every, numbers


def _write(
    model: torch.nn.Module, plan: Plan, every: Sequence[_Ranks], numbers: list[int]
) -> str:
    programs = [p for i, ranks in enumerate(every) for p in ranks.programs(i)]
    ops = OpSources.of({op for _, local in programs for op in own_ops(local)})
    boxings = {boxing.key: boxing for boxing in plan.boxings}
    reserved = _OWN | ops.definitions.keys() | {name for name, _ in programs}
    functions = Functions(boxings, ops.calls, frozenset(reserved))
    imports = sorted({*_IMPORTS, *ops.imports})
    parts = [
        HEAD.format(ranks=plan.mesh.size) + "\n" + "\n".join(imports),
        "aten = torch.ops.aten",
        "\n".join(_tables(plan, every, numbers)) + MIDDLE,
        "\n".join(_constants(model, plan, every)),
        *ops.definitions.values(),
        *(functions.write(name, local) for name, local in programs),
        _programs(every) + TAIL,
    ]
    return "\n\n\n".join(parts)


def _tables(plan: Plan, every: Sequence[_Ranks], numbers: list[int]) -> Iterator[str]:
    local = every[0].local
    held: dict[str, Placement] = {}
    buffers: dict[str, Placement] = {}
    cuts: dict[str, Placement] = {}
    inputs: dict[str, str] = {}
    entering = zip(local.inputs, local.input_types, local.input_placements, strict=True)
    for role, type_, placement in entering:
        if placement is None or type_ is None:
            continue
        if role.kind is InputKind.PARAMETER:
            own = plan.parameters[role.name].placements
            held[role.name] = own.optimizer or own.storage
        elif role.kind is InputKind.BUFFER:
            buffers[role.name] = placement
        elif role.kind is InputKind.CONSTANT:
            cuts[role.name] = placement
        elif role.kind is InputKind.INPUT:
            whole = plan.inputs.tensors[role.name].shape
            size = None if type_.shape == whole else type_.shape[0]
            inputs[role.name] = f"({_cuts(placement)}, {size})"
    trained = [r.name for r in local.outputs if r.kind is OutputKind.GRADIENT]
    yield f"MODEL = {plan.model.class_name!a}"
    yield f"AXES = {plan.mesh.names!r}"
    yield f"SIZES = {plan.mesh.sizes!r}"
    yield f"MICROBATCHES = {plan.microbatches}"
    yield f"PROGRAM_OF_RANK = {numbers!r}"
    yield (
        f"TRAINED = {{{', '.join(map(ascii, trained))}}}" if trained else "TRAINED = ()"
    )
    yield from _table("PARAMETERS", {n: _noted(p) for n, p in held.items()})
    yield from _table("BUFFERS", {n: _noted(p) for n, p in buffers.items()})
    yield from _table("CUTS", {n: _noted(p) for n, p in cuts.items()})
    yield from _table("INPUTS", {name: (text, "") for name, text in inputs.items()})


def _table(name: str, entries: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    yield f"{name} = {{"
    for key, (text, note) in entries.items():
        yield f"    {key!a}: {text},{note}"
    yield "}"


def _noted(placement: Placement) -> tuple[str, str]:
    return _cuts(placement), f"  # {placement}"


def _cuts(placement: Placement) -> str:
    cuts: list[object] = []
    for sharding in placement.shardings:
        match sharding:
            case Split(dim, segments):
                cuts.append((dim, segments))
            case Partial(Reduction.SUM):
                cuts.append("sum")
            case _:
                cuts.append(None)
    return repr(tuple(cuts))


def _constants(
    model: torch.nn.Module, plan: Plan, every: Sequence[_Ranks]
) -> Iterator[str]:
    """Yield tables of the tensors that no state dict holds."""
    saved = model.state_dict()
    buffers = {
        name: buffer
        for name, buffer in model.named_buffers()
        if name not in saved and name in plan.buffers
    }
    names = {r.name for r in every[0].local.inputs if r.kind is InputKind.CONSTANT}
    constants = {n: x for n, x in every[0].local.constants.items() if n in names}
    for table, tensors in (("BUFFERS_NOT_SAVED", buffers), ("CONSTANTS", constants)):
        yield f"{table} = {{"
        for name, tensor in tensors.items():
            yield f"    {name!a}: {_literal(name, tensor)},"
        yield "}"


def _literal(name: str, tensor: torch.Tensor) -> str:
    if tensor.is_meta:
        raise BadOptions(
            f"--to python: {name} has no values on the meta device; want a TARGET "
            "whose model has them"
        )
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    raw: Any = flat.numpy().tobytes()
    text = base64.b64encode(zlib.compress(raw, 9)).decode()
    return f'constant({tensor.dtype}, {tuple(tensor.shape)}, "{text}")'


def _programs(every: Sequence[_Ranks]) -> str:
    lines = ["PROGRAMS = ["]
    for number, ranks in enumerate(every):
        lines += ["    {", f'        "step": step_{number},']
        lines += _keys("entering", _entering(ranks.local))
        lines += _keys("leaving", [(r.kind, r.name) for r in ranks.local.outputs])
        lines.append('        "bringing": [')
        for i, program in enumerate(ranks.bringing):
            name = program.inputs[0].name
            lines.append(f"            ({name!a}, bring_{number}_{i}),")
        lines += ["        ],", '        "completing": [']
        for i, program in enumerate(ranks.completing):
            kind, _, name = program.inputs[0].name.partition(":")
            keys = ", ".join(f"{(str(r.kind), r.name)!a}" for r in program.outputs)
            entry = f"({(kind, name)!a}, complete_{number}_{i}, [{keys}])"
            lines.append(f"            {entry},")
        lines += ["        ],", "    },"]
    return "\n".join([*lines, "]"])


def _entering(local: LocalProgram) -> list[tuple[str, str]]:
    kind = InputKind.COORDINATE
    return [(role.kind, role.name) for role in local.inputs if role.kind is not kind]


def _keys(name: str, keys: Sequence[tuple[str, str]]) -> list[str]:
    inner = [f"            {(str(kind), key)!a}," for kind, key in keys]
    return [f'        "{name}": [', *inner, "        ],"]


EXPORTER = ProgramExporter(
    "python", "what every rank runs, as source for PyTorch alone", ".py", write_python
)
