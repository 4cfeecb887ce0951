"""Plans of stages: of any stretch of a program, on any mesh, each search made once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

from partita.compiler.capture.capture import Captured
from partita.compiler.errors import NoSolution
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import Program
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.rename import renamed
from partita.compiler.search.again import patterns_of
from partita.compiler.search.cut_line import Line
from partita.compiler.search.parts import Clock
from partita.compiler.search.pinned import pins_of
from partita.compiler.search.pins import parse_pin
from partita.compiler.search.stage_asked import asked_of
from partita.compiler.search.stage_cost import StageCost
from partita.compiler.search.stage_ends import StageProgram
from partita.compiler.search.stage_of import stage_of
from partita.compiler.search.stretches import Stretches
from partita.compiler.search.wanted import ANY, ROUGH, Wanted
from partita.lowering import in_stages, stage_alone
from partita.one_mesh.not_faster import NotFaster
from partita.one_mesh.planner import Planner
from partita.pipelines.stage_known import Known, Unknown, answers
from partita.pipelines.stage_search import Room, StageSearch, of_stage

_NO_ROOM = 1
"""Bytes that next to no plan does with: the refusal tells what is needed."""


@dataclass(frozen=True)
class Planned:
    """The plan of a stage, with the figures of it."""

    plan: Plan
    cost: StageCost

    @classmethod
    def of(cls, plan: Plan, program: Program) -> Planned:
        """Return a plan with its figures, given the stage's program."""
        return cls(plan, StageCost.of(plan, program))


@dataclass
class StagePlans:
    """What stages of one program take, for one number of microbatches.

    Attributes:
        planner: what plans a program; its mesh does not count.
        line: along which the program is cut.
        clock: when to come to an end.
        refusals: of stages that do not fit.
        is_shown: whether nothing better is there than all that was told of stages since
            this was set, but for what was searched roughly.
    """

    planner: Planner
    line: Line
    clock: Clock
    refusals: list[NoSolution] = field(default_factory=list[NoSolution])
    is_shown: bool = True
    _programs: dict[tuple[int, int], StageProgram] = field(
        default_factory=dict[tuple[int, int], StageProgram]
    )
    _told: dict[tuple[int, int, Mesh, Room | None], Known | Unknown] = field(
        default_factory=dict[tuple[int, int, Mesh, "Room | None"], "Known | Unknown"]
    )
    _least: dict[object, int | None] = field(default_factory=dict[object, "int | None"])
    _known: dict[tuple[object, bool], Known | Unknown] = field(
        default_factory=dict[tuple[object, bool], "Known | Unknown"]
    )

    @classmethod
    def of(cls, planner: Planner, clock: Clock) -> StagePlans:
        """Return the plans of the stages of a planner's program."""
        return cls(planner, Line.of(planner.captured.program), clock)

    @property
    def captured(self) -> Captured:
        """The model."""
        return self.planner.captured

    @cached_property
    def _stretches(self) -> Stretches:
        return Stretches(self.captured.program, self.line)

    @property
    def homes(self) -> tuple[int, ...]:
        """The places along the line where parameters to train are at home, in order."""
        return self._stretches.homes

    @property
    def held(self) -> tuple[int, ...]:
        """The places where parameters are used first, trained or not, in order."""
        return self._stretches.held

    def programs(self, ends: Sequence[int]) -> tuple[Program, ...]:
        """Return the programs of the stages that end at these boundaries."""
        stages = {
            key: sum(at >= end for end in ends[:-1])
            for at, key in enumerate(self.line.forward)
        }
        program = self.captured.program
        return in_stages(program, stage_of(program, stages), len(ends))

    def program(self, begin: int, end: int) -> StageProgram:
        """Return the program of a stage from one boundary to another."""
        if (begin, end) not in self._programs:
            found = stage_alone(self._stretches.between(begin, end))
            self._programs[begin, end] = StageProgram(found)
        return self._programs[begin, end]

    def cost(
        self,
        begin: int,
        end: int,
        mesh: Mesh,
        room: Room | None,
        wanted: Wanted = ANY,
    ) -> StageCost | None:
        """Return what a stage takes; ``None`` where no plan of it was found that fits.

        What fits is the same plan with room and without. What does not fit with fewer
        microbatches is not tried with more. Nor is anything searched within a limit
        where the fastest plan without one keeps a rank busy too long.
        """
        place = begin, end, mesh, room
        known = self._told.get(place)
        if known is None:
            known = self._fitting(self.program(begin, end), mesh, room, wanted)
            if wanted == ANY:
                self._told[place] = known
        self.is_shown &= wanted.is_rough or known.is_shown
        return known.cost if isinstance(known, Known) else None

    def least_bytes(
        self, begin: int, end: int, mesh: Mesh, live: int, clock: Clock
    ) -> int | None:
        """Return the bytes of the plan of a stage that needs least.

        ``None`` where none was found in time.

        Args:
            begin: a boundary.
            end: another one.
            mesh: of the stage.
            live: of so many microbatches at once.
            clock: when to come to an end.
        """
        stage, room = self.program(begin, end), Room(_NO_ROOM, live)
        key = self._key(stage, mesh, room)
        if key not in self._least:
            planner = replace(self.planner, mesh=mesh)
            try:
                StageSearch.of(planner, stage.program, room, clock).run()
            except NoSolution as refusal:
                self._least[key] = refusal.least_bytes
            else:  # it holds nothing
                self._least[key] = _NO_ROOM
        return self._least[key]

    def _fitting(
        self, stage: StageProgram, mesh: Mesh, room: Room | None, wanted: Wanted
    ) -> Known | Unknown:
        free = self._searched(stage, mesh, None, ANY)
        if not isinstance(free, Known) or room is None:
            return free
        if free.cost.bytes(room.live) <= room.limit_bytes:
            return free
        if room.limit_bytes <= 0:
            return Unknown(inf, is_shown=True)
        if not self._is_time:
            wanted = wanted.less_than(inf)
        elif free.cost.busy_s(self.captured.program.in_time.count) >= wanted.below_s:
            return Unknown(wanted.below_s, free.is_shown)
        for live in range(1, room.live):
            fewer = self._found(
                self._key(stage, mesh, replace(room, live=live)), wanted
            )
            if isinstance(fewer, Unknown):
                return fewer
        return self._searched(stage, mesh, room, wanted, free.hidden_s)

    @cached_property
    def _is_time(self) -> bool:
        """Whether what is searched for is the time that a rank is busy.

        A fused group may take less than its calls, and what a pin costs is no time.
        """
        options = self.planner.options
        pins = (parse_pin(name, pin) for name, pin in options.pins.items())
        return not options.fuse and all(pin.is_hard for pin in pins)

    def _found(self, key: object, wanted: Wanted) -> Known | Unknown | None:
        """Return what is known that answers; what was found roughly, if it will do."""
        for is_rough in (False, True)[: 1 + wanted.is_rough]:
            known = self._known.get((key, is_rough))
            if known is not None and answers(known, wanted):
                return known
        return None

    def _searched(
        self,
        stage: StageProgram,
        mesh: Mesh,
        room: Room | None,
        wanted: Wanted,
        hidden_s: float = 0.0,
    ) -> Known | Unknown:
        key = self._key(stage, mesh, room)
        known = self._found(key, wanted)
        if known is None:
            planner = replace(self.planner, mesh=mesh)
            # messages may pass while a rank computes
            less = wanted.less_than(wanted.below_s + hidden_s)
            searched = StageSearch.of(planner, stage.program, room, self.clock, less)
            try:
                plan = searched.run()
            except NoSolution as refusal:
                # Without time for more, what was found roughly is what there is.
                known = self._known.get((key, True))
                if isinstance(known, Known):
                    known = replace(known, is_shown=False)
                else:
                    known = Unknown(inf, searched.search.is_shown)
                    self.refusals.append(refusal)
            except NotFaster:
                known = Unknown(wanted.below_s, searched.search.is_shown)
            else:
                cost, search = StageCost.of(plan, stage.program), searched.search
                known = Known.of(plan, cost, search.decided, search.is_shown)
            self._known[key, wanted.is_rough] = known
        return known

    def _key(self, stage: StageProgram, mesh: Mesh, room: Room | None) -> object:
        """Return what stages have in common that are planned alike."""
        options = self.planner.options
        pins = pins_of(stage.program, options.pins)
        again = patterns_of(stage.program, options.recompute)
        asked = asked_of(stage.program, pins, again, options.rules)
        return stage.structure, mesh, room, asked

    def plan(
        self,
        ends: Sequence[int],
        meshes: Sequence[Mesh],
        rooms: Sequence[Room | None],
    ) -> list[Planned]:
        """Return the plans of all stages: what was decided for stages alike.

        Raises:
            NoSolution: when one does not fit.
        """
        found: list[Planned] = []
        first: dict[object, tuple[Program, Plan]] = {}
        for program, mesh, room in zip(self.programs(ends), meshes, rooms, strict=True):
            stage = StageProgram(program)
            known = self._fitting(stage, mesh, room, ROUGH)
            if not isinstance(known, Known):
                raise self.refusals[-1]
            # with more or less room what is decided for it is often the same
            key = self._key(stage, mesh, None), id(known)
            if key not in first:
                planner = of_stage(replace(self.planner, mesh=mesh), program)
                first[key] = program, planner.decided(known.decided)
            own, plan = first[key]
            found.append(Planned(renamed(plan, own, program), known.cost))
        return found
