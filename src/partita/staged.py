"""Plan a pipeline: where the program is cut, and how each stage runs on its ranks.

The model is planned as one stage first, which says how long each call takes on the
ranks of a stage; by that the program is cut, and every stage is planned by itself. The
schedule and what stages hand each other follow; a simulation of both is what the plan
predicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from partita.compiler.capture.capture import Captured
from partita.compiler.capture.fingerprint import fingerprint
from partita.compiler.cost.memory import timeline
from partita.compiler.cost.timeline import Category
from partita.compiler.cost.transfer import hop_seconds
from partita.compiler.errors import BadMesh, NoSolution
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import OutputKind
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.transfer import Placed, received_bytes, sent_bytes, transfer
from partita.compiler.plan.document import ModelId, Predicted, Ref, SearchResult
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.stage_records import Stage
from partita.compiler.plan.stages import (
    find_transfers,
    join_stages,
    read_schedule,
    stage_document,
    write_schedule,
)
from partita.compiler.plan.units import format_bytes
from partita.compiler.plan.uses import completes
from partita.compiler.plan.wires import Wire, wires_of
from partita.compiler.schedules.make import make_schedule
from partita.compiler.schedules.schedule import Schedule
from partita.compiler.schedules.transfers import with_transfers
from partita.compiler.search.again import patterns_of
from partita.compiler.search.cut import Cut, Pipeline, find_cut
from partita.compiler.search.cut_line import Line
from partita.compiler.search.cut_memory import CutMemory
from partita.compiler.search.parts import Clock
from partita.compiler.search.pinned import pins_of
from partita.compiler.search.stage_of import stage_of
from partita.compiler.simulate.plan import seconds_by_part, simulate_step
from partita.lowering import in_stages
from partita.planner import Planner, Search

PIPELINE = "pp"
"""The mesh axis that carries stages."""

_MOST_FITTINGS = 4
_STATE = (Category.PARAMETERS, Category.GRADIENTS, Category.OPTIMIZER)


def stage_mesh(mesh: Mesh) -> Mesh:
    """Return the mesh of one stage's ranks: all axes but the one that carries stages.

    Raises:
        BadMesh: when that is not the first.
    """
    if mesh.names[0] != PIPELINE:
        raise BadMesh(
            f"mesh {mesh}: axis {PIPELINE!r} carries pipeline stages, whose ranks are "
            f"neighbours; want it first, like {PIPELINE}=2,dp=2"
        )
    rest = dict(mesh.axes[1:])
    return Mesh(**rest) if rest else Mesh(dp=1)


@dataclass(frozen=True)
class StagedSearch:
    """The search for the plan of a pipeline.

    Attributes:
        whole: what plans the program as one stage on a stage's ranks.
        mesh: with the axis of stages.
        clock: the time there is.
    """

    whole: Planner
    mesh: Mesh
    clock: Clock

    def run(self) -> Plan:
        """Return the plan found: the best cut, and the best plan of each stage.

        Raises:
            NoSolution: when a stage does not keep to the memory limit.
        """
        free = replace(self.whole.options, memory=None)
        alone = Search(replace(self.whole, options=free), self._share(2)).run()
        cut = self._cut(alone)
        found = self.of_cut(cut.stage_of_forward)
        spent = found.search.seconds + alone.search.seconds
        solver = f"{alone.search.solver}, cut into {found.search.solver}"
        limit = self.whole.limit
        if limit is not None and found.predicted.bytes > limit:
            raise NoSolution(
                f"memory: the limit is {format_bytes(limit)} on a rank, and the stages "
                f"of one need {format_bytes(found.predicted.bytes)} together",
                found.predicted.bytes,
            )
        result = replace(found.search, solver=solver, seconds=spent)
        return replace(found, search=result)

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule, with transfers."""
        options = self.whole.options
        count = self.whole.captured.program.in_time.count
        name = "1f1b" if options.schedule == "auto" else options.schedule
        made = make_schedule(name, self.mesh.sizes[0], count, options.stages_per_rank)
        return with_transfers(made)

    def of_cut(self, stage_of_forward: Mapping[str, int]) -> Plan:
        """Return the plan of a cut, given the stage of every call of the forward.

        Raises:
            NoSolution: when a stage does not keep to the memory limit.
        """
        captured, schedule = self.whole.captured, self.schedule
        stage_of_call = stage_of(captured.program, stage_of_forward)
        programs = in_stages(captured.program, stage_of_call, schedule.num_stages)
        parts = [
            self._stage(replace(captured, program=program), schedule.most_live[number])
            for number, program in enumerate(programs)
        ]
        return self.joined(parts)

    def joined(self, parts: Sequence[Plan]) -> Plan:
        """Return the plan of all stages, given that of each."""
        inner, size = self.whole.mesh, self.whole.mesh.size
        stages = [
            Stage(inner, tuple(range(row * size, (row + 1) * size)), ())
            for row in self.schedule.rank_of
        ]
        options, program = self.whole.options, self.whole.captured.program
        pins = {name: str(pin) for name, pin in options.pins.items()}
        first = parts[0].options
        joined = replace(
            join_stages(parts, stages),
            mesh=self.mesh,
            model=ModelId(self.whole.class_name, fingerprint(program)),
            options=replace(first, memory_bytes=self.whole.limit, pins=pins),
            schedule=write_schedule(self.schedule),
            search=_result(parts),
            loss_function=options.loss,
        )
        return predicted(with_priced_transfers(joined))

    def _share(self, parts: int) -> Clock:
        return Clock.of(max(self.clock.left_s, 0.1) / parts)

    def _cut(self, alone: Plan) -> Cut:
        """Return the best cut by what calls take and hold as one stage.

        Under a memory limit it is the best of those whose stages fit as they are; where
        none does, the best of all, since stages may yet be stored or made otherwise.
        """
        line = Line.of(self.whole.captured.program)
        priced, num = self._priced(alone), self.schedule.num_stages
        if self.whole.limit is None:
            return find_cut(line, priced, num)
        try:
            return find_cut(line, priced, num, self._held(alone, self.whole.limit))
        except NoSolution:
            return find_cut(line, priced, num)

    def _held(self, alone: Plan, limit: int) -> CutMemory:
        """Return what calls and parameters hold, as the plan ``alone`` says."""
        state: dict[str, int] = {}
        saved: dict[str, int] = {}
        whole = {part: key for key, e in alone.expanded.items() for part in e.nodes}
        maker = {boxing.key: boxing.producer for boxing in alone.boxings}
        for held in timeline(alone).held:
            if held.category in _STATE:
                name = held.key.removeprefix(f"{OutputKind.GRADIENT}:")
                state[name] = state.get(name, 0) + held.num_bytes
            elif held.category is Category.SAVED:
                key = maker.get(held.key) or Ref.parse(held.key).key
                key = whole.get(key, key)
                saved[key] = saved.get(key, 0) + held.num_bytes
        of_one = limit // self.whole.options.stages_per_rank
        return CutMemory(state, saved, self.schedule.most_live, of_one)

    def _priced(self, alone: Plan) -> Pipeline:
        """Return what calls take, as the plan ``alone`` of one stage says."""
        count = self.whole.captured.program.in_time.count
        taken = {
            key: node.seconds / count
            for key, node in alone.nodes.items()
            if node.role is None
        }
        for key, whole in alone.expanded.items():
            taken[key] = sum(taken[part] for part in whole.nodes)
        for boxing in alone.boxings:
            if boxing.producer in taken and not completes(boxing):
                taken[boxing.producer] += boxing.seconds / count
        return Pipeline(count, taken, self._hop_seconds)

    def _hop_seconds(self, num_bytes: int) -> float:
        """Return the time of so many bytes between neighbours, spread over ranks."""
        inner = self.whole.mesh
        spread = Placement.parse("(S(0),)")
        flat = Mesh(rank=inner.size)
        source = Placed(flat, tuple(range(inner.size)), spread)
        target = Placed(flat, tuple(range(inner.size, 2 * inner.size)), spread)
        hardware = load_hardware(self.whole.options.hardware)
        return hop_seconds((num_bytes,), torch.uint8, source, target, hardware)

    def _stage(self, captured: Captured, live: int) -> Plan:
        """Return the plan of one stage, of which ``live`` microbatches are held."""
        options, limit = self.whole.options, self.whole.limit
        program = captured.program
        own = replace(
            options,
            pins=pins_of(program, options.pins),
            recompute=patterns_of(program, options.recompute),
        )
        planner = replace(self.whole, captured=captured)
        allowed = limit
        least = 0
        for _ in range(_MOST_FITTINGS):
            limited = replace(own, memory=allowed)
            search = Search(replace(planner, options=limited), self._share(2))
            plan = search.run()
            least = peak_bytes(plan, live)
            if limit is None or least <= limit:
                return plan
            more = least - plan.predicted.bytes
            allowed = min((allowed or limit) - 1, limit - more)
            if allowed <= 0:
                break
        assert limit is not None
        raise NoSolution(
            f"memory: the limit is {format_bytes(limit)} on a rank; a stage that holds "
            f"{live} microbatches at once needs {format_bytes(least)}",
            least,
        )


def peak_bytes(plan: Plan, live: int) -> int:
    """Return what a rank of a stage holds at most, with so many microbatches."""
    held = timeline(plan)
    return held.peak_bytes + (live - 1) * held.saved_bytes


def with_priced_transfers(plan: Plan) -> Plan:
    """Return ``plan`` with what its stages hand each other, and what that takes."""
    plan = replace(plan, transfers=find_transfers(plan))
    hardware = load_hardware(plan.hardware)
    priced = tuple(
        replace(
            wire.transfer,
            bytes=_busiest_bytes(wire),
            seconds=hop_seconds(
                wire.type.shape, wire.type.dtype, wire.source, wire.target, hardware
            ),
        )
        for wire in wires_of(plan)
    )
    return replace(plan, transfers=priced)


def _busiest_bytes(wire: Wire) -> int:
    messages = transfer(wire.type.shape, wire.source, wire.target)
    itemsize = wire.type.dtype.itemsize
    sent = (sent_bytes(messages, rank, itemsize) for rank in wire.source.ranks)
    taken = (received_bytes(messages, rank, itemsize) for rank in wire.target.ranks)
    return max((*sent, *taken), default=0)


def predicted(plan: Plan) -> Plan:
    """Return ``plan`` with what its step is predicted to take."""
    schedule = read_schedule(plan)
    step = simulate_step(plan)
    held: dict[int, int] = {}
    by_part: dict[int, dict[str, int]] = {}
    for number, live in enumerate(schedule.most_live):
        part = stage_document(plan, number)
        row = schedule.rank_of[number]
        held[row] = held.get(row, 0) + peak_bytes(part, live)
        peak = timeline(part)
        for category, size in peak.by_category(peak.peak).items():
            own = by_part.setdefault(row, {})
            own[str(category)] = own.get(str(category), 0) + size
    most = max(held, key=held.__getitem__)
    parts = by_part[most]
    ahead = held[most] - sum(parts.values())
    if ahead:
        parts["microbatches ahead"] = ahead
    seconds = seconds_by_part(plan, step)
    return replace(
        plan, predicted=Predicted(step.seconds, held[most], dict(seconds), parts)
    )


def _result(parts: Sequence[Plan]) -> SearchResult:
    """Return how the plan was found: cut first, then each stage by itself."""
    spent = sum(part.search.seconds for part in parts)
    solver = f"{len(parts)} stages: {parts[0].search.solver}"
    return SearchResult(solver, "not compared with all", None, spent)
