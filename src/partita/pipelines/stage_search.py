"""The search of one stage of a pipeline, by itself."""

from __future__ import annotations

from dataclasses import dataclass, replace

from partita.compiler.errors import NoSolution
from partita.compiler.ir.program import Program
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.units import format_bytes
from partita.compiler.search.again import patterns_of
from partita.compiler.search.parts import Clock
from partita.compiler.search.pinned import pins_of
from partita.compiler.search.wanted import ANY, Wanted
from partita.one_mesh.planner import Planner
from partita.one_mesh.search import Search


@dataclass(frozen=True, slots=True)
class Room:
    """What a stage has: bytes on a rank, for so many microbatches at once."""

    limit_bytes: int
    live: int


@dataclass(frozen=True)
class StageSearch:
    """The search of a stage's program.

    Attributes:
        search: on the stage's mesh, in less than the seconds that are wanted, one thing
            after another. Its plan tells no alternatives.
        room: what it must fit; anything does unless said.
    """

    search: Search
    room: Room | None

    @classmethod
    def of(
        cls,
        planner: Planner,
        program: Program,
        room: Room | None,
        clock: Clock,
        wanted: Wanted = ANY,
    ) -> StageSearch:
        """Return the search in half of the time left; ``planner`` has the mesh."""
        share = clock.share(1 / 2)
        planner = of_stage(planner, program)
        if room is None:
            return cls(Search(planner, share, wanted, most_alternatives=0), room)
        options = replace(planner.options, memory=room.limit_bytes)
        within = replace(planner, options=options)
        return cls(Search(within, share, wanted, 0, room.live), room)

    def run(self) -> Plan:
        """Return the fastest plan found.

        Raises:
            NoSolution: when no plan was found that fits.
            NotFaster: when none was found that takes less than is wanted.
        """
        room = self.room
        try:
            return self.search.run()
        except NoSolution as refusal:
            if room is None or refusal.least_bytes is None:
                raise
            least, held = refusal.least_bytes, ""
            if room.live > 1:
                held = f" that holds {room.live} microbatches at once"
            raise NoSolution(
                f"memory: the limit is {format_bytes(room.limit_bytes)} on a rank; "
                f"one of the stages{held} needs {format_bytes(least)}",
                least,
                refusal.state_bytes,
            ) from refusal


def of_stage(planner: Planner, program: Program) -> Planner:
    """Return what plans a stage's program, with what of the options is about it."""
    options = replace(
        planner.options,
        memory=None,
        pins=pins_of(program, planner.options.pins),
        recompute=patterns_of(program, planner.options.recompute),
    )
    captured = replace(planner.captured, program=program)
    return replace(planner, captured=captured, options=options)
