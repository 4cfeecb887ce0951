"""What an exported Python program says of its stages: where tensors live, what runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.program import InputKind, InputRole, OutputKind
from partita.compiler.ir.sbp import Partial, Placement, Reduction, Split
from partita.compiler.plan.plan import Plan
from partita.export.rank_kinds import RankKind, StageKinds

_HELD = {
    InputKind.PARAMETER: "parameters",
    InputKind.BUFFER: "buffers",
    InputKind.CONSTANT: "constants",
    InputKind.INPUT: "inputs",
}
"""The tables of a stage, by what is in them."""


def suffix_of(plan: Plan, stage: int, kind: int) -> str:
    """Return what the names of functions end in that ranks of a kind run."""
    return f"{kind}" if len(plan.stages) == 1 else f"{stage}_{kind}"


def stage_tables(plan: Plan, every: Sequence[StageKinds]) -> Iterator[str]:
    """Yield the lines of ``STAGES``."""
    yield "STAGES = ["
    for number, own in enumerate(every):
        yield "    {"
        yield from (f"        {line}" for line in _stage(plan, number, own))
        yield "    },"
    yield "]"


def _stage(plan: Plan, number: int, own: StageKinds) -> Iterator[str]:
    stage, local = plan.stages[number], own.locals[0]
    trained = [r.name for r in local.outputs if r.kind is OutputKind.GRADIENT]
    scales = (
        type_.dtype
        for role, type_ in zip(local.inputs, local.input_types, strict=True)
        if role.kind is InputKind.LOSS_SCALE and type_ is not None
    )
    yield f'"axes": {stage.mesh.names!r},'
    yield f'"sizes": {stage.mesh.sizes!r},'
    yield f'"ranks": {stage.ranks!r},'
    yield f'"row": {plan.schedule.rank_of[number]},'
    yield f'"program_of": {own.kind_of!r},'
    yield f'"scale": {next(scales, None)},'
    yield f'"trained": [{", ".join(map(ascii, trained))}],'
    for name, entries in _held(plan, local).items():
        yield f'"{name}": {{'
        yield from (f"    {key!a}: {text}" for key, text in entries.items())
        yield "},"
    yield '"programs": ['
    for kind, ranks in enumerate(own.kinds):
        yield "    {"
        yield from (f"        {x}" for x in _kind(ranks, suffix_of(plan, number, kind)))
        yield "    },"
    yield "],"


def _held(plan: Plan, local: LocalProgram) -> dict[str, dict[str, str]]:
    """Return the tables of what enters a stage from without: name, cuts, placement."""
    found: dict[str, dict[str, str]] = {name: {} for name in _HELD.values()}
    entering = zip(local.inputs, local.input_types, local.input_placements, strict=True)
    for role, type_, placement in entering:
        if role.kind not in _HELD or placement is None or type_ is None:
            continue
        if role.kind is InputKind.PARAMETER:
            own = plan.parameters[role.name].placements
            placement = own.optimizer or own.storage
        text = cuts_of(placement)
        if role.kind is InputKind.INPUT:
            whole = plan.inputs.tensors[role.name].shape
            size = None if type_.shape == whole else type_.shape[0]
            text = f"({text}, {size})"
        found[_HELD[role.kind]][role.name] = f"{text},  # {placement}"
    return found


def cuts_of(placement: Placement) -> str:
    """Return how a tensor is cut, axis by axis, as Python.

    >>> cuts_of(Placement.parse("(S(0; 4|2), B, P(sum))"))
    "((0, (4, 2)), None, 'sum')"
    """
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


def _kind(kind: RankKind, suffix: str) -> Iterator[str]:
    """Yield what ranks of a kind run, and what enters and leaves."""
    names = {id(program): name for name, program in kind.programs(suffix)}
    yield '"steps": ['
    for local in kind.steps:
        yield "    ("
        yield f"        {names[id(local)]},"
        entering = [(str(r.kind), r.name) for r in local.inputs]
        leaving = [(str(r.kind), r.name) for r in local.outputs]
        coordinate = str(InputKind.COORDINATE)
        yield from _keys([key for key in entering if key[0] != coordinate])
        yield from _keys(leaving)
        yield "    ),"
    yield "],"
    yield '"bringing": ['
    for program in kind.bringing:
        taken = [role.name for role in _tensors(program)]
        yield f"    ({taken!a}, {names[id(program)]}),"
    yield "],"
    yield '"completing": ['
    for program in kind.completing:
        summed = [role.name.partition(":") for role in _tensors(program)]
        taken = [(kind, name) for kind, _, name in summed]
        keys = [(str(role.kind), role.name) for role in program.outputs]
        yield f"    ({taken!a}, {names[id(program)]}, {keys!a}),"
    yield "],"


def _tensors(program: LocalProgram) -> list[InputRole]:
    """Return what enters beside the rank's coordinates."""
    return [role for role in program.inputs if role.kind is not InputKind.COORDINATE]


def _keys(keys: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield "        ["
    yield from (f"            {key!a}," for key in keys)
    yield "        ],"
