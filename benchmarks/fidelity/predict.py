"""What Partita predicts for a layout, from the plans of three stages.

Layers are alike, so a stage of many is priced by its parts: the model of three layers
is cut into three stages, the first with the embedding, the last with the loss, and each
is planned as ``pt.plan`` plans it. A stage of n layers does what the stage that begins
or ends like it does, and n - 1 times what the one in the middle does; the schedule of
the whole is simulated with that. ``whole`` plans the same without this short cut, and
the test compares both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from benchmarks.fidelity.held import groups_bytes, stage_bytes
from benchmarks.fidelity.layout import Layout
from benchmarks.fidelity.models import Shape, build, pins
from benchmarks.fidelity.part import Part
from benchmarks.fidelity.system import Hops, System, joined
from torch import nn

import partita as pt
from partita.compiler.cost.collectives import axis_seconds, wire_bytes
from partita.compiler.hardware.links import CollectiveKind
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.ir.program import Phase, info
from partita.compiler.plan.stage_records import Stage, Transfer
from partita.compiler.plan.stages import join_stages, stage_document
from partita.compiler.schedules.make import make_schedule
from partita.compiler.schedules.schedule import Schedule
from partita.compiler.search.again import patterns_of
from partita.compiler.search.parts import Clock
from partita.compiler.search.pinned import pins_of
from partita.compiler.search.stage_of import stage_of
from partita.compiler.simulate.plan import step_of
from partita.lowering import in_stages
from partita.one_mesh.planner import Planner
from partita.one_mesh.search import Search
from partita.pipelines.staged import with_priced_transfers

_LIMIT_S = 60.0
_GATHER = CollectiveKind.ALL_GATHER


@dataclass(frozen=True)
class Prediction:
    """What a step takes: seconds, bytes of the rank that needs most, and its parts."""

    seconds: float
    bytes: int
    parts: Mapping[str, float]


@dataclass(frozen=True)
class Parts:
    """The three stages, and what a microbatch hands from the second to the third."""

    first: Part
    middle: Part
    last: Part
    transfers: tuple[Transfer, ...]

    def stage(self, layers: int, is_first: bool, is_last: bool) -> list[Part]:
        """Return what a stage of so many layers is made of."""
        ends = [self.first] * is_first + [self.last] * is_last
        if layers < len(ends):
            raise ValueError("a stage with the embedding and the loss needs two layers")
        middle = [self.middle] * (layers - len(ends))
        return [*ends[:is_first], *middle, *ends[is_first:]]


def predict(layout: Layout) -> Prediction:
    """Return what Partita predicts for a layout."""
    parts = _parts(_like(layout))
    schedule = _schedule(layout)
    sizes = layout.layers_of_stages
    count = schedule.num_stages
    stages = [
        parts.stage(layers, number == 0, number == count - 1)
        for number, layers in enumerate(sizes[:-1])
    ]
    is_alone = count > 1 and not sizes[-1]  # the loss, on a stage without a layer
    stages.append(
        [_loss(_like(layout))] if is_alone else parts.stage(sizes[-1], count == 1, True)
    )
    transfers = [_as_sent(layout, t) for t in _transfers(parts, count)]
    items = [
        joined([part.items for part in stage], layout.system, hops, layout.mesh)
        for stage, hops in zip(stages, _hops(layout, transfers, count), strict=True)
    ]
    if layout.system.sends_alone:
        transfers = [replace(transfer, seconds=0.0) for transfer in transfers]
    step = step_of(schedule, items, transfers)
    held = [0] * layout.pp
    for number, (stage, live) in enumerate(
        zip(stages, schedule.most_live, strict=True)
    ):
        rank = schedule.rank_of[number]
        held[rank] += stage_bytes(stage, number, live, layout)
    row = max(range(layout.pp), key=lambda r: step.ends[r] + step.once[r])
    seconds = {
        "before": step.begins[row],
        "busy": step.run.busy_s[row],
        "waiting": step.ends[row] - step.run.busy_s[row] - step.begins[row],
        "after": step.once[row],
    }
    num_bytes = max(held) + groups_bytes(layout)
    return Prediction(step.seconds, num_bytes, seconds)


def _like(layout: Layout) -> Layout:
    """Return a layout with the same three stages, one for many.

    Two microbatches or more are alike: each makes the same.
    """
    count = min(layout.microbatches, 2)
    return replace(
        layout,
        shape=replace(layout.shape, layers=3),
        pp=1,
        batch=count * layout.micro * layout.dp,
        virtual=1,
        schedule="1f1b",
        sizes=(),
    )


def _schedule(layout: Layout) -> Schedule:
    figures = layout.pp, layout.microbatches, layout.virtual
    return make_schedule(layout.schedule, *figures)


def _as_sent(layout: Layout, transfer: Transfer) -> Transfer:
    """Return a transfer with the seconds that it takes as the layout's system sends.

    What is split is gathered along ``tp`` where it comes.
    """
    is_split = layout.system.splits_sends and layout.tp > 1
    if not (is_split and transfer.kind.is_of_microbatch and transfer.bytes):
        return transfer
    if layout.is_sequence_parallel:  # it is split already
        return transfer
    gathered = wire_bytes(_GATHER, transfer.bytes // layout.tp, layout.tp)
    hardware = load_hardware(layout.hardware)
    gather_s = axis_seconds(_GATHER, gathered, layout.mesh, 1, hardware)
    return replace(transfer, seconds=transfer.seconds / layout.tp + gather_s)


def _hops(layout: Layout, transfers: Sequence[Transfer], count: int) -> list[Hops]:
    """Return by stage what the transfers of a microbatch take, if they are alone."""
    announced_s = layout.system.announced_s
    sent = [[0.0, 0.0] for _ in range(count)]
    received = [[0.0, 0.0] for _ in range(count)]
    for transfer in transfers:
        if transfer.kind.is_of_microbatch:
            way = int(transfer.receiver < transfer.sender)
            seconds = announced_s[way] + transfer.seconds
            sent[transfer.sender][way] += seconds
            received[transfer.receiver][way] += seconds
    return [
        Hops((out[0], out[1]), (got[0], got[1]))
        for out, got in zip(sent, received, strict=True)
    ]


def _transfers(parts: Parts, count: int) -> tuple[Transfer, ...]:
    """Return what the stages hand each other, as those of three do."""
    found: list[Transfer] = []
    for transfer in parts.transfers:
        ends = transfer.sender, transfer.receiver
        if transfer.kind.is_of_microbatch:
            for stage in range(count - 1):
                if ends == (1, 2):
                    found.append(replace(transfer, sender=stage, receiver=stage + 1))
                if ends == (2, 1):
                    found.append(replace(transfer, sender=stage + 1, receiver=stage))
        elif count > 1:  # of what several stages share, each of those between alike
            at = {0: (0,), 1: range(1, count - 1), 2: (count - 1,)}
            senders, receivers = (at[end] for end in ends)
            found += [
                replace(transfer, sender=sender, receiver=receiver)
                for sender in senders
                for receiver in receivers
            ]
    return tuple(found)


@cache
def _parts(layout: Layout) -> Parts:
    """Return the three stages of a layout, whose pipeline does not count."""
    plan = plan_of_three(layout)
    first, middle, last = (Part.of(stage_document(plan, n), layout) for n in range(3))
    return Parts(first, middle, last, plan.transfers)


@cache
def _loss(layout: Layout) -> Part:
    """Return a stage of the last norm, the output and the loss."""
    plan = _plan_cut(_planned(layout), _loss_apart)
    return Part.of(stage_document(plan, len(plan.stages) - 1), layout)


def options_of(layout: Layout, model: nn.Module) -> pt.Options:
    """Return what a stage of ``layout`` is planned with."""
    return pt.Options(
        hardware=layout.hardware,
        microbatches=layout.microbatches,
        pins=pins(model, layout.mesh, layout.zero, layout.is_sequence_parallel),
        optimizer="mixed-adamw",
        recompute=layout.patterns,
        fuse=layout.fuse,
        time_limit=_LIMIT_S,
    )


def plan_of_three(layout: Layout) -> pt.Plan:
    """Return the plan of three layers, each with its ends a stage of its own."""
    return _plan_cut(_planned(layout), _by_layers)


def _planned(layout: Layout) -> Layout:
    """Return a layout with the same plan, one for all systems that make alike again."""
    return replace(layout, system=System(fused=layout.system.fused))


@lru_cache(maxsize=8)
def _plan_cut(layout: Layout, cut: Callable[[Planner], dict[str, int]]) -> pt.Plan:
    """Return the plan of three layers, given the stage of every call of the forward."""
    model, planner = _captured(layout.shape, layout.batch, layout.microbatches)
    options = options_of(layout, model)
    planner = replace(planner, mesh=layout.mesh, options=options)
    program = planner.captured.program
    of_forward = cut(planner)
    count = max(of_forward.values()) + 1
    stages = in_stages(program, stage_of(program, of_forward), count)
    plans: list[pt.Plan] = []
    for stage in stages:
        own = replace(
            options,
            pins=pins_of(stage, options.pins),
            recompute=patterns_of(stage, options.recompute),
        )
        captured = replace(planner.captured, program=stage)
        planned = replace(planner, captured=captured, options=own)
        plans.append(Search(planned, Clock.of(_LIMIT_S)).run())
    size = layout.mesh.size
    ranks = (tuple(range(n * size, (n + 1) * size)) for n in range(count))
    joined = join_stages(plans, [Stage(layout.mesh, own, ()) for own in ranks])
    mesh = pt.Mesh(pp=count, **dict(layout.mesh.axes))
    return with_priced_transfers(replace(joined, mesh=mesh))


@lru_cache
def _captured(shape: Shape, batch: int, count: int) -> tuple[nn.Module, Planner]:
    """Return the model of three layers, and what plans it on any mesh."""
    model, inputs = build(shape, batch)
    options = pt.Options(microbatches=count)
    return model, Planner.of(model, (), inputs, pt.Mesh(dp=1), options)


def _by_layers(planner: Planner) -> dict[str, int]:
    """Return the stage of every call of the forward: that of its layer."""
    found: dict[str, int] = {}
    stage = 0
    for key, path in _forward(planner):
        if path[0] == "layers":
            stage = max(stage, int(path[1]))
        found[key] = stage
    return found


def _loss_apart(planner: Planner) -> dict[str, int]:
    """Return the same, with what follows the last layer on a stage of its own."""
    found = _by_layers(planner)
    after = max(found.values()) + 1
    for key, path in reversed(_forward(planner)):
        if path[0] == "layers":
            break
        found[key] = after
    return found


def _forward(planner: Planner) -> list[tuple[str, list[str]]]:
    """Return the calls of the forward: their keys, and the paths of their modules."""
    calls = (info(node) for node in planner.captured.program.calls())
    return [(f.key, f.module.split(".")) for f in calls if f.phase is Phase.FORWARD]
