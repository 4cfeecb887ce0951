"""What messages were given, and an allocator does not give to others yet.

A tensor that a collective reads on a stream of its own is recorded there: once freed,
it goes to others when the device is behind the collective (torch.Tensor.record_stream).
A host that is ahead of its device has freed much that is not there to be taken (torch,
pull request 76861, issue 147168).
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.fidelity.layout import Layout
from benchmarks.fidelity.system import host_s

from partita.compiler.cost.step import StepKind
from partita.compiler.schedules.schedule import Work
from partita.compiler.simulate.stage_items import Item, StageItems

_WORKS = (Work.FORWARD, Work.BACKWARD)
_EVENTS = 4
"""What a message takes of a queue besides its kernel.

Its stream waits for an event that its caller's records, and its caller's for another
that it records (torch, ProcessGroupNCCL.cpp).
"""


def recorded_bytes(parts: Sequence[StageItems], layers: int, layout: Layout) -> int:
    """Return what is freed and not there when the last stage's forward is through.

    These are the tensors of as many commands as the host is ahead then: those of that
    forward and of what ran before it. Where nothing else is left an allocator waits for
    them, and finds them in pieces: too small for the logits, so that the stage needs as
    much besides. Other stages ask for nothing that large.

    Args:
        parts: what the stage does.
        layers: how many it has.
        layout: of which it is the last stage.
    """
    system, tp = layout.system, layout.tp
    if not system.queued or tp == 1:
        return 0
    messages = {
        work: [i for part in parts for i in part.by_work[work] if i.axis == "tp"]
        for work in _WORKS
    }
    commands = {
        work: max(1, layers) * count + _EVENTS * len(messages[work])
        for work, count in zip(_WORKS, system.kernels, strict=True)
    }
    before = _since_it_waited(layout)
    behind = _behind(parts, layout) * sum(commands[work] for work in before)
    left, found = min(float(system.queued), behind), 0.0
    for work in before:
        given = sum(_given(item, work, tp) for item in messages[work])
        found += given * min(1.0, left / commands[work])
        left = max(0.0, left - commands[work])
    return round(found)


def _given(item: Item, work: Work, tp: int) -> float:
    """Return the bytes that a message takes and makes, and that are freed soon.

    What is gathered lies in a buffer that stays, and in the forward the backward needs
    what it is gathered from.
    """
    part = item.bytes / (tp - 1)
    if item.name.startswith(StepKind.REDUCE_SCATTER):
        return tp * part + part
    return part if work is Work.BACKWARD else 0.0


def _since_it_waited(layout: Layout) -> list[Work]:
    """Return what the host has issued, from last to first, since it waited.

    It waits for the device where it receives from another stage, and between steps.
    """
    if layout.pp > 1:
        return [Work.FORWARD]
    return [Work.FORWARD] + [Work.BACKWARD, Work.FORWARD] * (layout.microbatches - 1)


def _behind(parts: Sequence[StageItems], layout: Layout) -> float:
    """Return what part of a microbatch the device has not done when the host has."""
    device_s = sum(part.seconds[work] for part in parts for work in _WORKS)
    of_host = (
        host_s(part, work, layout.system, layout.mesh)
        for part in parts
        for work in _WORKS
    )
    return max(0.0, 1.0 - sum(of_host) / device_s)
