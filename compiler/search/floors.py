"""What the calls of a stretch of a program take at least, on a mesh, however placed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from partita.compiler.ir.program import Phase, info
from partita.compiler.schedules.schedule import Work
from partita.compiler.search.candidates import Candidates
from partita.compiler.search.cut_line import Line
from partita.compiler.search.model import Floats
from partita.compiler.search.stage_cost import StageCost

_PART = {Phase.FORWARD: 0, Phase.BACKWARD_INPUT: 1}


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds of a stage, for one microbatch.

    Attributes:
        forward: of the forward.
        waited: of the backward that the stage before waits for.
        rest: of the backward that nobody does.
    """

    forward: float
    waited: float
    rest: float

    @staticmethod
    def of(cost: StageCost) -> Parts:
        """Return those of a planned stage."""
        seconds = cost.seconds
        return Parts(
            seconds[Work.FORWARD],
            seconds[Work.BACKWARD_INPUT],
            seconds[Work.BACKWARD_WEIGHT],
        )

    @property
    def all(self) -> float:
        """Their sum."""
        return self.forward + self.waited + self.rest


@dataclass(frozen=True)
class Floors:
    """By part and boundary, the least seconds of the calls in front of it."""

    before: Floats

    @staticmethod
    def of(line: Line, candidates: Candidates) -> Floors:
        """Return those of a program on a mesh: each call in its fastest way."""
        program = candidates.program
        along = np.zeros((3, len(line.forward) + 1))
        for node in program.calls():
            fact = info(node)
            least = min(way.choice.seconds for way in candidates.of_call(node))
            part = _PART.get(fact.phase, 2)
            along[part, line.position[fact.key] + 1] += least
        return Floors(np.cumsum(along, axis=1) / program.in_time.count)

    @staticmethod
    def none(line: Line) -> Floors:
        """Return floors of nothing, for calls that are not made one by one."""
        return Floors(np.zeros((3, len(line.forward) + 1)))

    def of_stage(self, begin: int, end: int) -> Parts:
        """Return the least of a stage from one boundary to another."""
        found = self.before[:, end] - self.before[:, begin]
        return Parts(*map(float, found))
