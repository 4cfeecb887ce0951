"""The step of a pipeline whose stages were planned: its seconds and what ranks hold.

The same as the simulation of the whole plan says (simulate/plan.py), from the figures
of the stages alone, so that many pipelines can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partita.compiler.cost.transfer import hop_seconds
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.ir.transfer import Placed
from partita.compiler.plan.stage_records import TransferKind
from partita.compiler.schedules.schedule import Action, Schedule
from partita.compiler.search.stage_cost import StageCost
from partita.compiler.search.stage_ends import StageEnds, Tensor
from partita.compiler.simulate.pipeline import Run, simulate_pipeline
from partita.compiler.simulate.plan import closing_of


@dataclass(frozen=True)
class PlacedStage:
    """A planned stage on its ranks, in the order of its mesh."""

    cost: StageCost
    ends: StageEnds
    mesh: Mesh
    ranks: tuple[int, ...]

    def takes(self, tensor: Tensor) -> tuple[TensorType, Placed]:
        """Return what a tensor is, and how it is to lie here."""
        at, type_ = self.ends.takes[tensor]
        return type_, self._placed(self.cost.entering[at])

    def gives(self, tensor: Tensor) -> Placed:
        """Return how a tensor lies that is handed over."""
        placement = self.cost.leaving[self.ends.gives[tensor]]
        assert placement is not None, tensor
        return self._placed(placement)

    def holds(self, name: str) -> Placed:
        """Return how a parameter or buffer lies that is at home here."""
        return self._placed(self.cost.entering[self.ends.holds[name]])

    def sums(self, name: str) -> tuple[TensorType, Placed]:
        """Return what a gradient is that is at home here, and how it lies."""
        at, type_ = self.ends.sums[name]
        placement = self.cost.leaving[at]
        assert placement is not None, name
        return type_, self._placed(placement)

    def _placed(self, placement: Placement) -> Placed:
        return Placed(self.mesh, self.ranks, placement)


@dataclass(frozen=True, slots=True)
class Hop:
    """A tensor that one stage hands another, and the seconds of that each time."""

    kind: TransferKind
    sender: int
    receiver: int
    seconds: float


def hops_to(
    stages: Sequence[PlacedStage], number: int, hardware: Hardware
) -> list[Hop]:
    """Return what the last of ``stages``, of that number, and the others exchange."""
    last = stages[number]
    found: list[Hop] = []

    def add(tensor: Tensor, sender: int, receiver: int) -> None:
        type_, target = stages[receiver].takes(tensor)
        found.append(
            _hop(
                tensor,
                (sender, stages[sender].gives(tensor)),
                type_,
                (receiver, target),
                hardware,
            )
        )

    for other, stage in enumerate(stages[:number]):
        for tensor in last.ends.takes:
            if tensor in stage.ends.gives:
                add(tensor, other, number)
        for tensor in stage.ends.takes:
            if tensor in last.ends.gives:
                add(tensor, number, other)
        for ours, theirs in ((number, other), (other, number)):
            found += _shared(stages, ours, theirs, hardware)
    return found


def _shared(
    stages: Sequence[PlacedStage], home: int, other: int, hardware: Hardware
) -> list[Hop]:
    """Return the state that a stage hands another, and the gradients it gets back."""
    here, there = stages[home], stages[other]
    found: list[Hop] = []
    for tensor in there.ends.takes:
        kind, name = tensor
        if kind is TransferKind.STATE and name in here.ends.holds:
            type_, target = there.takes(tensor)
            source = home, here.holds(name)
            found.append(_hop(tensor, source, type_, (other, target), hardware))
    for tensor in there.ends.gives:
        kind, name = tensor
        if kind is TransferKind.GRADIENT and name in here.ends.sums:
            type_, target = here.sums(name)
            source = other, there.gives(tensor)
            found.append(_hop(tensor, source, type_, (home, target), hardware))
    return found


def _hop(
    tensor: Tensor,
    source: tuple[int, Placed],
    type: TensorType,
    target: tuple[int, Placed],
    hardware: Hardware,
) -> Hop:
    seconds = hop_seconds(type.shape, type.dtype, source[1], target[1], hardware)
    return Hop(tensor[0], source[0], target[0], seconds)


def step_seconds(
    schedule: Schedule, stages: Sequence[PlacedStage], hops: Sequence[Hop]
) -> float:
    """Return what a step takes; see ``simulate_step``."""
    begins = [0.0] * len(schedule.rows)
    handed = [0.0] * len(schedule.rows)
    for number, stage in enumerate(stages):
        begins[schedule.rank_of[number]] += stage.cost.before_s
    ways: dict[tuple[int, bool], float] = {}
    for hop in hops:
        row = schedule.rank_of[hop.receiver]
        if hop.kind.is_of_microbatch:
            way = hop.sender, hop.kind is TransferKind.FORWARD
            ways[way] = ways.get(way, 0.0) + hop.seconds
        elif hop.kind is TransferKind.STATE:
            begins[row] += hop.seconds
        else:
            handed[row] += hop.seconds
    closing = closing_of(schedule)

    def seconds(action: Action) -> float:
        cost = stages[action.stage].cost
        if action in closing:
            return cost.closing[action.work].seconds
        return cost.seconds[action.work]

    def way_seconds(stage: int, to: int) -> float:
        return ways.get((stage, to > stage), 0.0)

    run = simulate_pipeline(schedule, seconds, way_seconds, begins)
    ends = (_end_of(row, run, schedule, stages) for row in range(len(begins)))
    return max(end + own for end, own in zip(ends, handed, strict=True))


def _end_of(
    row: int, run: Run, schedule: Schedule, stages: Sequence[PlacedStage]
) -> float:
    """Return when a row is done with what follows its actions, too."""
    now = run.end_of(row)
    closing = closing_of(schedule)
    last = {e.action.stage: e for e in run.compute[row] if e.action in closing}
    for number, own in enumerate(schedule.rank_of):
        if own != row:
            continue
        cost = stages[number].cost
        if number in last:
            closed = cost.closing[last[number].action.work]
            now = max(now, last[number].end_s + closed.waited_s) + closed.after_s
        else:
            now += cost.after_s
    return now


def most_bytes(schedule: Schedule, stages: Sequence[PlacedStage]) -> int:
    """Return what the rank with most to hold holds, stages of one row together."""
    held = [0] * len(schedule.rows)
    for number, (stage, live) in enumerate(
        zip(stages, schedule.most_live, strict=True)
    ):
        held[schedule.rank_of[number]] += stage.cost.bytes(live)
    return max(held)
