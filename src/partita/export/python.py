"""What every rank runs, as one readable Python file that needs PyTorch alone.

Ranks with equal programs share a function; where they stand on the mesh enters as
numbers. Partita's own ops (attention, random numbers and the like) come along as the
functions that they are; a model's own ops do not, and the file says so where they are
not registered.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.program import OutputKind
from partita.compiler.plan.plan import Plan
from partita.compiler.rules.rule import RuleSet
from partita.compiler.rules.table import default_rules
from partita.export.exporter import ProgramExporter
from partita.export.function_source import Functions, model_ops, own_ops
from partita.export.not_saved import buffers_not_saved, constants_of, with_values
from partita.export.op_sources import OpSources
from partita.export.pipeline_template import OF_STAGES, PIPELINE, START
from partita.export.python_template import (
    ALONE,
    CONSTANT,
    END,
    HEAD,
    INFERENCE,
    MODEL_OPS,
    STAGE,
    STEP,
    TRAINING,
)
from partita.export.rank_kinds import StageKinds
from partita.export.stage_tables import stage_tables, suffix_of
from partita.export.wire_tables import wire_tables
from partita.lowering import capture_for, lower

_IMPORTS = (
    "import torch",
    "import torch.distributed as dist",
    "from torch import nn",
    "from torch.distributed.device_mesh import DeviceMesh",
)
_OWN = frozenset(
    "ARRIVED BUFFERS_NOT_SAVED CONSTANTS DeviceMesh LOSS MICROBATCHES MODEL Model ROWS "
    "STAGES Stage WIRES base64 block constant itertools main nn re shard sys wait "
    "zlib".split()
)


def write_python(
    model: torch.nn.Module, plan: Plan, rules: RuleSet = default_rules
) -> bytes:
    """Return the file.

    Raises:
        BadOptions: for values that the file cannot hold.
        BadPlan: when the plan is of another model.
    """
    lowered = lower(capture_for(model, plan, rules=rules), plan, rules)
    return _write(model, plan, [StageKinds.of(stage) for stage in lowered]).encode()


def _write(model: torch.nn.Module, plan: Plan, every: Sequence[StageKinds]) -> str:
    programs = [
        program
        for stage, own in enumerate(every)
        for number, kind in enumerate(own.kinds)
        for program in kind.programs(suffix_of(plan, stage, number))
    ]
    ops = OpSources.of({op for _, local in programs for op in own_ops(local)})
    others = sorted({op for _, local in programs for op in model_ops(local)})
    boxings = {boxing.key: boxing for boxing in plan.boxings}
    reserved = _OWN | ops.definitions.keys() | {name for name, _ in programs}
    functions = Functions(boxings, ops.calls, frozenset(reserved))
    is_one = len(plan.stages) == 1
    imports = {*_IMPORTS, *ops.imports, *(() if is_one else ("import re",))}
    more = "" if is_one else OF_STAGES
    has_loss = any(output.kind is OutputKind.LOSS for output in plan.outputs)
    locals_ = [local for own in every for local in own.locals[:1]]
    parts = [
        HEAD.format(ranks=plan.mesh.size, more=more)
        + "\n"
        + "\n".join(sorted(imports)),
        *([MODEL_OPS.format(ops=others).rstrip()] if others else ()),
        "aten = torch.ops.aten",
        f"MODEL = {plan.model.class_name!a}\nMICROBATCHES = {plan.microbatches}",
        CONSTANT.rstrip(),
        "\n".join(_tables(model, plan, locals_)),
        *ops.definitions.values(),
        *(functions.write(name, local) for name, local in programs),
        "\n".join(stage_tables(plan, every)),
        *(() if is_one else ["\n".join(wire_tables(plan))]),
        (STAGE + STEP + ALONE if is_one else STAGE + START + STEP + PIPELINE).rstrip(),
        (TRAINING if has_loss else INFERENCE) + END,
    ]
    return "\n\n\n".join(parts)


def _tables(
    model: torch.nn.Module, plan: Plan, locals_: Sequence[LocalProgram]
) -> Iterator[str]:
    """Yield tables of the tensors that no state dict holds."""
    tables = {
        "BUFFERS_NOT_SAVED": buffers_not_saved(model, plan),
        "CONSTANTS": constants_of(locals_),
    }
    for table, tensors in tables.items():
        yield f"{table} = {{"
        for name, tensor in with_values(tensors, "python").items():
            yield f"    {name!a}: {_literal(tensor)},"
        yield "}"


def _literal(tensor: torch.Tensor) -> str:
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    raw: Any = flat.numpy().tobytes()
    text = base64.b64encode(zlib.compress(raw, 9)).decode()
    return f'constant({tensor.dtype}, {tuple(tensor.shape)}, "{text}")'


EXPORTER = ProgramExporter(
    "python", "what every rank runs, as source for PyTorch alone", ".py", write_python
)
