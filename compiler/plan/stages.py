"""A plan of several stages: joined from plans of one stage each, and taken apart again.

What a stage runs is planned as a program of its own. The whole plan holds the nodes of
all stages; a stage's own plan is what of it has to do with its nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TypeVar

from partita.compiler.errors import BadPlan
from partita.compiler.ir.program import InputKind, OutputKind
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.stages import sent_name, shared_gradient_name
from partita.compiler.plan.document import CollectiveTotal, Document, Node
from partita.compiler.plan.stage_records import Schedule as Stated
from partita.compiler.plan.stage_records import Stage, Transfer, TransferKind
from partita.compiler.schedules.schedule import Action, Schedule

D = TypeVar("D", bound=Document)
T = TypeVar("T")


def stage_of_calls(document: Document) -> dict[str, int]:
    """Return the stage of every call of the model, also of those taken apart."""
    found = {key: node.stage for key, node in document.nodes.items()}
    for key, whole in document.expanded.items():
        found[key] = found[whole.nodes[0]]
    return found


def stage_document(document: D, stage: int) -> D:
    """Return the plan of one stage: what of ``document`` has to do with its nodes."""
    return stage_documents(document)[stage]


def stage_documents(document: D) -> tuple[D, ...]:
    """Return the plan of every stage; see ``stage_document``."""
    if len(document.stages) == 1:
        return (document,)
    stages = {key: node.stage for key, node in document.nodes.items()}
    roles: list[set[tuple[InputKind, str]]] = [set() for _ in document.stages]
    for node in document.nodes.values():
        if node.role is not None:
            roles[node.stage].add((node.role.kind, node.role.name))

    def split(items: Iterable[T], key: Callable[[T], str]) -> list[list[T]]:
        """Group what has to do with the node of a key by that node's stage."""
        found: list[list[T]] = [[] for _ in document.stages]
        for item in items:
            stage = stages.get(key(item))
            if stage is not None:
                found[stage].append(item)
        return found

    def made(key: str) -> str:
        """Return a node, given itself or the boxing of a tensor of it."""
        return key if key in stages else key.rpartition("#")[0]

    nodes = split(document.nodes.items(), lambda item: item[0])
    expanded = split(document.expanded.items(), lambda item: item[1].nodes[0])
    boxings = split(document.boxings, lambda boxing: boxing.producer)
    recompute = split(document.recompute, made)
    fusion, joined = (
        split(groups, lambda group: group[0])
        for groups in (document.fusion, document.joined)
    )
    producer = {boxing.key: boxing.producer for boxing in document.boxings}
    buckets = split(document.buckets, lambda keys: producer.get(keys[0], ""))
    ahead, late = (
        split(turns.items(), lambda item: producer.get(item[0], ""))
        for turns in (document.ahead, document.late)
    )
    order = split(document.order, lambda key: key)
    leaving = [output for output in document.outputs if output.value is not None]
    outputs = split(leaving, lambda o: "" if o.value is None else o.value.key)
    rows = [split(row.nodes, lambda key: key) for row in document.derived_rules]
    return tuple(
        replace(
            document,
            mesh=own.mesh,
            parameters={
                name: parameter
                for name, parameter in document.parameters.items()
                if (InputKind.PARAMETER, name) in roles[stage]
            },
            buffers={
                name: buffer
                for name, buffer in document.buffers.items()
                if (InputKind.BUFFER, name) in roles[stage]
            },
            nodes=dict(nodes[stage]),
            expanded=dict(expanded[stage]),
            boxings=tuple(boxings[stage]),
            recompute=tuple(recompute[stage]),
            fusion=tuple(fusion[stage]),
            joined=tuple(joined[stage]),
            buckets=tuple(buckets[stage]),
            ahead=dict(ahead[stage]),
            late=dict(late[stage]),
            order=tuple(order[stage]),
            outputs=tuple(outputs[stage]),
            derived_rules=tuple(
                replace(row, nodes=tuple(by_stage[stage]))
                for row, by_stage in zip(document.derived_rules, rows, strict=True)
                if by_stage[stage]
            ),
        )
        for stage, own in enumerate(document.stages)
    )


def join_stages(parts: Sequence[D], stages: Sequence[Stage]) -> D:
    """Return the plan of all stages, each of whose own plans is among ``parts``.

    The first part gives what is said of the whole. Predictions are the caller's to make
    and so are transfers, which this leaves out.
    """
    first = parts[0]
    homes = find_homes(parts)
    totals = Counter[tuple[str, str]]()
    sizes = Counter[tuple[str, str]]()
    for part in parts:
        for total in part.collectives:
            totals[total.kind, total.axis] += total.count
            sizes[total.kind, total.axis] += total.bytes
    return replace(
        first,
        stages=tuple(
            replace(stage, nodes=part.order)
            for part, stage in zip(parts, stages, strict=True)
        ),
        parameters={
            name: replace(parameter, homes=homes[name])
            for part in parts
            for name, parameter in part.parameters.items()
        },
        buffers={n: b for part in parts for n, b in part.buffers.items()},
        nodes={key: node for part in parts for key, node in part.nodes.items()},
        expanded={key: e for part in parts for key, e in part.expanded.items()},
        boxings=tuple(b for part in parts for b in part.boxings),
        recompute=tuple(key for part in parts for key in part.recompute),
        fusion=tuple(group for part in parts for group in part.fusion),
        joined=tuple(group for part in parts for group in part.joined),
        buckets=tuple(keys for part in parts for keys in part.buckets),
        ahead={key: at for part in parts for key, at in part.ahead.items()},
        late={key: at for part in parts for key, at in part.late.items()},
        order=tuple(key for part in parts for key in part.order),
        outputs=tuple(output for part in parts for output in part.outputs),
        collectives=tuple(
            CollectiveTotal(kind, axis, count, sizes[kind, axis])
            for (kind, axis), count in totals.items()
        ),
        reported=tuple(row for part in parts for row in part.reported),
        derived_rules=tuple(row for part in parts for row in part.derived_rules),
    )


def find_homes(parts: Sequence[Document]) -> dict[str, tuple[int, ...]]:
    """Return the stages that have each parameter, the one that updates it first."""
    found: dict[str, list[int]] = {}
    for stage, part in enumerate(parts):
        for node in part.nodes.values():
            if node.role is not None and node.role.kind is InputKind.PARAMETER:
                found.setdefault(node.role.name, []).insert(0, stage)
            if node.role is not None and node.role.kind is InputKind.SHARED:
                found.setdefault(node.role.name, []).append(stage)
    return {name: tuple(stages) for name, stages in found.items()}


def find_transfers(document: Document) -> tuple[Transfer, ...]:
    """Return what goes from stage to stage, without bytes and seconds.

    Raises:
        BadPlan: for a tensor that enters a stage and that no other sends.
    """
    outputs = {(o.kind, o.name): o for o in document.outputs}
    stored = {
        node.role.name: node
        for node in document.nodes.values()
        if node.role is not None and node.role.kind.is_state
    }
    found: list[Transfer] = []
    for key, node in document.nodes.items():
        if node.role is None:
            continue
        kind, name = node.role.kind, node.role.name
        if kind.is_received:
            is_forward = kind is InputKind.RECEIVED_FORWARD
            sent = OutputKind.SENT_FORWARD if is_forward else OutputKind.SENT_BACKWARD
            output = outputs.get((sent, sent_name(name, node.stage)))
            if output is None or output.value is None or output.placement is None:
                raise BadPlan(f"nodes.{key}: no stage sends it; want a {sent} output")
            way = TransferKind.FORWARD if is_forward else TransferKind.BACKWARD
            sender = document.nodes[output.value.key].stage
            source = output.placement
        elif kind is InputKind.SHARED:
            if name not in stored:
                raise BadPlan(f"nodes.{key}: no stage has parameter or buffer {name!r}")
            home = stored[name]
            way, sender, source = TransferKind.STATE, home.stage, _made(home)
        else:
            continue
        found.append(Transfer(way, name, sender, node.stage, source, _made(node)))
    return (*found, *_gradients(document))


def _made(node: Node) -> Placement:
    (placement,) = node.signature.results
    assert placement is not None
    return placement


def _gradients(document: Document) -> list[Transfer]:
    """Return the parts of gradients that go home."""
    wanted = {o.name: o for o in document.outputs if o.kind is OutputKind.GRADIENT}
    parts = {
        o.name: o for o in document.outputs if o.kind is OutputKind.SHARED_GRADIENT
    }
    # One that uses only what another makes of a parameter makes a part, too.
    makers = {document.nodes[o.value.key].stage for o in parts.values() if o.value}
    found: list[Transfer] = []
    for name, parameter in document.parameters.items():
        for stage in sorted(makers):
            part = parts.get(shared_gradient_name(name, stage))
            if part is None:
                continue
            home = wanted[name]
            assert part.placement is not None
            assert home.placement is not None
            found.append(
                Transfer(
                    TransferKind.GRADIENT,
                    name,
                    stage,
                    parameter.homes[0],
                    part.placement,
                    home.placement,
                )
            )
    return found


def read_schedule(document: Document) -> Schedule:
    """Return the schedule that the plan states.

    Raises:
        BadPlan: for a text in it that is no action.
    """
    stated = document.schedule
    return Schedule(
        stated.name,
        document.microbatches,
        stated.rank_of,
        tuple(tuple(map(Action.parse, row.split())) for row in stated.rows),
        stated.most_live,
    )


def write_schedule(schedule: Schedule) -> Stated:
    """Return the schedule as a plan states it."""
    rows = tuple(" ".join(map(str, row)) for row in schedule.rows)
    return Stated(schedule.name, schedule.rank_of, rows, schedule.most_live)


def mesh_text(document: Document) -> str:
    """Return the mesh of a plan; where stages have unlike ones, how many have which."""
    meshes = [str(stage.mesh) for stage in document.stages]
    if len(set(meshes)) == 1:
        return str(document.mesh)
    runs = ((mesh, len(list(same))) for mesh, same in groupby(meshes))
    return ", ".join(f"{mesh} ({n} stage{'s' * (n > 1)})" for mesh, n in runs)
