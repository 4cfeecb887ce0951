"""How long each action of a pipeline stage takes, from the stage's plan alone.

What a plan says of calls and boxings is of a whole step: a microbatch takes its part
of it. What is done once, behind all microbatches, is counted apart: completing and
reducing gradients, the optimizer's step, bringing parameters to where they are used.
"""

from __future__ import annotations

from dataclasses import dataclass

from partita.compiler.ir.program import Phase
from partita.compiler.plan.document import Boxing, Document
from partita.compiler.plan.uses import completes
from partita.compiler.schedules.schedule import Work


@dataclass(frozen=True, slots=True)
class StageSeconds:
    """The seconds of one microbatch in a stage, and of what a step does once."""

    forward: float
    backward_input: float
    backward_weight: float
    once: float

    def of(self, work: Work) -> float:
        """Return what an action takes."""
        match work:
            case Work.FORWARD:
                return self.forward
            case Work.BACKWARD:
                return self.backward_input + self.backward_weight
            case Work.BACKWARD_INPUT:
                return self.backward_input
            case Work.BACKWARD_WEIGHT:
                return self.backward_weight
            case _:
                return 0.0


def stage_seconds(document: Document) -> StageSeconds:
    """Return the seconds of the stage that ``document`` is the plan of."""
    count = document.microbatches
    phases = dict.fromkeys(Phase, 0.0)
    once = 0.0
    for node in document.nodes.values():
        if node.role is None:
            phases[node.phase] += node.seconds / count
        else:
            once += node.seconds
    for boxing in document.boxings:
        if boxing.enters or (count > 1 and completes(boxing)):
            once += boxing.seconds
        else:
            phases[_phase(document, boxing)] += boxing.seconds / count
    return StageSeconds(
        phases[Phase.FORWARD],
        phases[Phase.BACKWARD_INPUT],
        phases[Phase.BACKWARD_WEIGHT],
        once,
    )


def _phase(document: Document, boxing: Boxing) -> Phase:
    """Return when a boxing is made: before the first who wants it."""
    first = document.nodes.get(boxing.consumers[0])
    return (first or document.nodes[boxing.producer]).phase
