"""How the systems that were measured ran a step, where Partita's programs do not.

A plan says what a rank computes and sends, and its own programs carry that out in one
way. A published run was carried out in another: its activations lie with the sequence
first, some messages pass beside products, its host issues the ops one by one. What a
stage does is told here as that system did it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import numpy as np

import partita as pt
from partita.compiler.cost.collectives import CollectiveKind, axis_seconds
from partita.compiler.cost.step import StepKind
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.ir.again import again_key, is_again
from partita.compiler.ir.program import Phase
from partita.compiler.plan.beside import sums_beside
from partita.compiler.plan.document import Boxing, LoweringStep
from partita.compiler.plan.uses import times_in_step, type_of
from partita.compiler.schedules.schedule import Work
from partita.compiler.simulate.stage_items import Item, StageItems, stage_items

_F32 = 4
_MOVES = (StepKind.ALL_GATHER, StepKind.REDUCE_SCATTER, StepKind.ALL_TO_ALL)
_SUMS = (StepKind.ALL_REDUCE, StepKind.REDUCE_SCATTER)
_PRODUCTS = ("aten.mm.default", "aten.addmm.default")
_COPY = StepKind.ALL_TO_ALL  # along tp: where the sequence is first, a copy at most
_BUCKET = 25 * 2**20
_WORKS = (Work.FORWARD, Work.BACKWARD)
_PHASES = (Phase.FORWARD, Phase.BACKWARD_INPUT)


@dataclass(frozen=True)
class System:
    """How a system runs a step.

    Attributes:
        issue_s: seconds in which its host issues one op; 0 where it is always ahead.
        is_blocking: the host issues an op once the one before is done
            (``CUDA_LAUNCH_BLOCKING``), else as many as it can.
        sends_alone: a rank does nothing else while it sends to another stage.
        receives_alone: nor while it receives, so that both ends are busy.
        splits_sends: of what all ranks of ``tp`` hold alike each sends a part, and
            gathers the rest there.
        announced_s: how long what is sent forward and back is announced before, while
            both ends do nothing else.
        sums_beside: the gradient of what a tensor-parallel product is given is added
            up while that of its weight is computed.
        sums_in_f32: gradients of 16 bits are added up in f32 along ``dp``.
        reruns: modules whose activations are not kept run again as a whole.
        is_sequence_first: activations have the sequence first everywhere, so that
            nothing is copied to gather or scatter it.
        checked_s: by the size of a group, the seconds in which its hosts compare a
            collective with each other before they issue it; between two sizes a line.
        sums_in_backward: gradients are added up along ``dp`` while the last
            microbatch goes backward, as they come.
        gathers_copies: what the optimizer updated in pieces is gathered into copies,
            and gradients are copied into the buckets in which they are added up.
        group_bytes: what NCCL holds for a group of two, and for a larger one, besides
            the first, which profiles count.
        fused: patterns of what lies inside of kernels that keep what they were given,
            and whose backward makes it again as it goes, in no time of its own.
        queued: how many commands a host may be ahead of its device, where memory that
            a message was given is free once the device is there; 0 where it is at once.
        kernels: how many a layer is, forward and backward.
    """

    issue_s: float = 0.0
    is_blocking: bool = False
    sends_alone: bool = False
    receives_alone: bool = False
    splits_sends: bool = False
    announced_s: tuple[float, float] = (0.0, 0.0)
    sums_beside: bool = False
    sums_in_f32: bool = False
    reruns: bool = True
    is_sequence_first: bool = True
    checked_s: tuple[tuple[int, float], ...] = ()
    sums_in_backward: bool = False
    gathers_copies: bool = False
    group_bytes: tuple[int, int] = (0, 0)
    fused: tuple[str, ...] = ()
    queued: int = 0
    kernels: tuple[int, int] = (0, 0)

    def check_s(self, size: int) -> float:
        """Return the seconds in which a group's hosts compare a collective.

        >>> system = System(checked_s=((2, 1.0), (8, 7.0)))
        >>> [system.check_s(size) for size in (1, 2, 4, 16)], System().check_s(8)
        ([0.0, 1.0, 3.0, 7.0], 0.0)
        """
        if not self.checked_s or size == 1:
            return 0.0
        sizes, seconds = zip(*self.checked_s, strict=True)
        return float(np.interp(size, sizes, seconds))


MEGATRON = System(sends_alone=True, splits_sends=True)
"""Megatron-LM: its host is ahead of the device, but waits for other stages.

arXiv:2104.04473, section 4.1; megatron/p2p_communication.py of version 2: what is sent
one way passes together with what comes the other way, and is waited for.
"""

MEGATRON_3 = replace(MEGATRON, sums_beside=True)
"""Megatron-LM as Korthikanti et al. ran it.

Version 3, megatron/mpu/layers.py, LinearWithGradAccumulationAndAsyncCommunication.
"""


def as_run(plan: pt.Plan, system: System, not_kept: Sequence[str] = ()) -> StageItems:
    """Return what a stage does as a system does it.

    Gradients are added up once all have gone backward. Where the sequence is the first
    dim (Korthikanti et al., arXiv:2205.05198, figure 5), gathering and scattering it
    along ``tp`` moves nothing else, so the exchanges and copies that Partita needs for
    that are left out. ``not_kept`` are patterns of modules whose activations are made
    again.
    """
    boxings = list(plan.boxings)
    if system.is_sequence_first:
        boxings = [_sequence_first(plan, boxing) for boxing in boxings]
    if system.sums_in_f32:
        late = _gradients(plan)
        boxings = [_in_f32(plan, b) if b.key in late else b for b in boxings]
    plan = replace(plan, boxings=tuple(boxings))
    items = stage_items(plan)
    again = _rerun(plan, items, not_kept) if system.reruns else ()
    run = (*_beside_products(plan, items, system), *again)
    inside = [again_key(pattern) for pattern in system.fused]
    run = (i for i in run if not any(fnmatchcase(i.key, each) for each in inside))
    microbatch = tuple(replace(item, is_beside=False) for item in run)
    return replace(items, microbatch=microbatch, begun=())


def _sequence_first(plan: pt.Plan, boxing: Boxing) -> Boxing:
    """Return a boxing whose steps along ``tp`` take what their messages take."""
    if not any(step.axis == "tp" for step in boxing.lowering):
        return boxing
    times = times_in_step(boxing, plan.microbatches)
    hardware, axis = load_hardware(plan.hardware), plan.mesh.axis("tp")

    def alone(step: LoweringStep) -> LoweringStep:
        if step.axis != "tp" or step.kind not in _MOVES:
            return step
        if step.kind == StepKind.ALL_TO_ALL:
            return replace(step, bytes=0, seconds=0.0)
        kind, num_bytes = CollectiveKind(step.kind), step.bytes // times
        each_s = axis_seconds(kind, num_bytes, plan.mesh, axis, hardware)
        return replace(step, seconds=times * each_s)

    return replace(boxing, lowering=tuple(map(alone, boxing.lowering)))


def _gradients(plan: pt.Plan) -> frozenset[str]:
    """Return the keys of boxings whose results nothing in the program waits for."""
    found = {
        boxing.key
        for boxing in plan.boxings
        if not any(consumer in plan.nodes for consumer in boxing.consumers)
    }
    return sums_beside(plan) | found


def _in_f32(plan: pt.Plan, boxing: Boxing) -> Boxing:
    """Return what completes a gradient, its sum along ``dp`` taken in f32."""
    widened = _F32 / type_of(plan, boxing.ref).dtype.itemsize
    hardware = load_hardware(plan.hardware)
    axis = plan.mesh.axis("dp")

    def step_in_f32(step: LoweringStep) -> LoweringStep:
        if step.axis != "dp" or step.kind not in _SUMS:
            return step
        kind, wide = CollectiveKind(step.kind), round(widened * step.bytes)
        more_s = axis_seconds(kind, wide, plan.mesh, axis, hardware)
        more_s -= axis_seconds(kind, step.bytes, plan.mesh, axis, hardware)
        return replace(step, bytes=wide, seconds=step.seconds + more_s)

    return replace(boxing, lowering=tuple(map(step_in_f32, boxing.lowering)))


def _beside_products(
    plan: pt.Plan, items: StageItems, system: System
) -> Iterator[Item]:
    """Yield the items, less what they pass beside products that do not wait for them.

    The gradient of what a product is given waits for no gather that is repeated
    (Korthikanti et al., section 4.2.2). Partita's own programs do not do that yet.
    """
    beside: dict[str, float] = {}
    for boxing in plan.boxings:
        kinds = {step.kind for step in boxing.lowering if step.axis == "tp"}
        reader = plan.nodes.get(boxing.consumers[0])
        maker = plan.nodes[boxing.producer]
        if reader is not None and is_again(boxing.key):
            own_s = _products_s(plan, reader.module, Phase.BACKWARD_INPUT)
        elif kinds & set(_SUMS):
            is_hidden = system.sums_beside and maker.phase is Phase.BACKWARD_INPUT
            own_s = _products_s(plan, maker.module, Phase.BACKWARD_WEIGHT)
            own_s *= is_hidden
        else:
            continue
        beside[boxing.key] = own_s
    for item in items.microbatch:
        if item.axis == "tp" and item.key in beside:
            hidden_s = min(items.overlap * item.seconds, beside[item.key])
            beside[item.key] -= hidden_s
            yield replace(item, seconds=item.seconds - hidden_s)
        else:
            yield item


def _rerun(plan: pt.Plan, items: StageItems, not_kept: Sequence[str]) -> Iterator[Item]:
    """Yield what is made again though no gradient needs it.

    A module whose activations are not kept runs as a whole once more, its last product
    and what follows that among it (torch.utils.checkpoint before it stopped early, in
    torch 2.1; so counts equation 3 of arXiv:2104.04473). A plan leaves that out.
    """
    boxings = {boxing.key: boxing for boxing in plan.boxings}
    again = {(b.producer, b.target) for b in plan.boxings}
    for item in items.by_work[Work.FORWARD]:
        boxing = boxings.get(item.key)
        node = plan.nodes[boxing.producer if boxing else item.key]
        if not any(fnmatchcase(node.module, pattern) for pattern in not_kept):
            continue
        if boxing is None:
            is_made = again_key(item.key) in plan.nodes
        else:
            there = again_key(boxing.producer), boxing.target
            is_made = there in again or again_key(boxing.key) in boxings
        if not is_made:
            key = again_key(item.key)
            yield replace(item, key=key, phase=Phase.BACKWARD_INPUT)


def _products_s(plan: pt.Plan, module: str, phase: Phase) -> float:
    """Return the seconds of a module's products in one microbatch."""
    return sum(
        node.seconds / plan.microbatches
        for node in plan.nodes.values()
        if node.module == module and node.phase is phase and node.op in _PRODUCTS
    )


@dataclass(frozen=True)
class Hops:
    """Seconds of what a stage hands on and back, and of what it gets for each work."""

    sent_s: tuple[float, float] = (0.0, 0.0)
    received_s: tuple[float, float] = (0.0, 0.0)


def joined(
    parts: Sequence[StageItems], system: System, hops: Hops, mesh: pt.Mesh
) -> StageItems:
    """Return what a stage on ``mesh`` does that consists of parts, in order.

    They go forward from the first to the last, and backward from the last to the first.
    """
    forward = (item for part in parts for item in part.by_work[Work.FORWARD])
    backward = (i for part in reversed(parts) for i in part.by_work[Work.BACKWARD])
    items = replace(
        parts[0],
        before=tuple(item for part in parts for item in part.before),
        microbatch=(*forward, *backward),
        after=tuple(item for part in parts for item in part.after),
    )
    more: list[Item] = []
    for way, (work, phase) in enumerate(zip(_WORKS, _PHASES, strict=True)):
        issued_s = host_s(items, work, system, mesh)
        if not system.is_blocking:
            issued_s = max(0.0, issued_s - items.seconds[work])
        more.append(Item("issue", "issuing ops", phase, issued_s))
        if system.sends_alone:
            more.append(Item("send", "sending", phase, hops.sent_s[way]))
        if system.receives_alone:
            more.append(Item("receive", "receiving", phase, hops.received_s[way]))
    after = items.after
    if system.sums_in_backward:
        after = _in_backward(items, system, mesh)
    microbatch = (*items.microbatch, *more)
    return replace(items, microbatch=microbatch, after=after)


def host_s(items: StageItems, work: Work, system: System, mesh: pt.Mesh) -> float:
    """Return the seconds in which the host issues an action, if it waits for nobody."""
    own = items.by_work[work]
    count = sum(item.seconds > 0 for item in own)
    compared = [i for i in own if i.axis == "tp" and not i.name.startswith(_COPY)]
    tp = mesh.sizes[mesh.axis("tp")]
    return system.issue_s * count + system.check_s(tp) * len(compared)


def _in_backward(items: StageItems, system: System, mesh: pt.Mesh) -> tuple[Item, ...]:
    """Return what follows the microbatches, sums along ``dp`` as far as they are left.

    They pass while the last backward computes, and the host compares them meanwhile, a
    bucket at a time.
    """
    own_s, size = items.seconds[Work.BACKWARD], mesh.sizes[mesh.axis("dp")]
    sums = [item for item in items.after if item.axis == "dp"]
    sent_s = sum(item.seconds for item in sums)
    left_s = sent_s - min(items.overlap * sent_s, own_s)
    checked_s = _buckets(sums, size) * system.check_s(size)
    part = max(left_s, checked_s - own_s) / sent_s if sent_s else 1.0
    return tuple(
        replace(item, seconds=part * item.seconds) if item.axis == "dp" else item
        for item in items.after
    )


def _buckets(sums: Sequence[Item], size: int) -> int:
    """Return how many buckets all-reduces in f32 of 16-bit gradients fill.

    torch, DistributedDataParallel: a bucket is full when it has 25 MiB or more.
    """
    count, filled = 0, 0.0
    for item in sums:
        filled += item.bytes * size / (2 * (size - 1)) / 2
        if filled >= _BUCKET:
            count, filled = count + 1, 0.0
    return count + (filled > 0)
