"""From a plan and the model it is for to what each rank runs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from partita.compiler.capture.capture import Captured, capture_spec
from partita.compiler.capture.fingerprint import fingerprint
from partita.compiler.capture.inputs import InputSpec
from partita.compiler.capture.scored_model import LossFunction
from partita.compiler.cost.step import Step, StepKind
from partita.compiler.errors import BadOptions, BadPlan
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.program import Program, info
from partita.compiler.plan.document import Document, LossKind
from partita.compiler.plan.inputs import to_capture
from partita.compiler.plan.plan import Plan
from partita.compiler.rules.rule import RuleSet
from partita.passes.base import run_sequence
from partita.passes.fuse_small_ops import fuse_small_ops
from partita.passes.localize import localize
from partita.passes.sequence import sequence


def capture_for(
    model: torch.nn.Module,
    plan: Plan,
    spec: InputSpec | None = None,
    loss: LossFunction | None = None,
) -> Captured:
    """Capture ``model`` again, as the plan's example called it or as ``spec`` says.

    Raises:
        BadOptions: when the plan's loss was a function and none is given.
        BadPlan: when the plan is of another model; the message says what differs.
    """
    loss = loss_of(plan, loss)
    spec = spec or to_capture(plan.inputs)
    captured = capture_spec(model, spec, loss=loss, train=plan.options.train)
    check_same_model(model, captured.program, plan)
    return captured


def loss_of(plan: Plan, given: LossFunction | None) -> LossFunction | None:
    """Return the loss function to capture with: the one given, else the plan's own.

    Raises:
        BadOptions: when the plan's loss was a function and none is given.
    """
    loss = given or plan.loss_function
    if plan.options.loss is LossKind.CALLABLE and loss is None:
        raise BadOptions(
            "the plan was made with Options(loss=...), which a plan cannot hold; give "
            "the same function again as loss="
        )
    return loss


def check_same_model(model: torch.nn.Module, program: Program, plan: Plan) -> None:
    """Check that ``plan`` was made for ``program``.

    Raises:
        BadPlan: naming the first node that differs.
    """
    if fingerprint(program) == plan.model.fingerprint:
        return
    found = {info(node).key: node for node in program.nodes()}
    difference = "their constant arguments differ"
    for key in (*plan.nodes, *found):
        if key not in found or key not in plan.nodes:
            where = "the plan" if key in plan.nodes else "the model"
            difference = f"only {where} has {key!r}"
            break
        planned, types = plan.nodes[key], info(found[key]).types
        if planned.types != types:
            wanted = ", ".join(str(t) for t in planned.types)
            got = ", ".join(str(t) for t in types)
            difference = f"{key!r} is {got}, in the plan {wanted}"
            break
    raise BadPlan(
        f"the plan was made for another model ({plan.model.class_name}, fingerprint "
        f"{plan.model.fingerprint[:12]}) than this {type(model).__name__} "
        f"({fingerprint(program)[:12]}): {difference}; plan it again"
    )


def lowerings_of(plan: Document) -> dict[str, tuple[Step, ...]]:
    """Return the steps of every boxing of ``plan``, by its key."""
    found: dict[str, tuple[Step, ...]] = {}
    for boxing in plan.boxings:
        at, steps = boxing.source, list[Step]()
        for step in boxing.lowering:
            kinds = {str(kind) for kind in StepKind}
            if step.kind not in kinds:
                raise BadPlan(f"boxings: {boxing.key!r} has a step {step.kind!r}")
            axis = plan.mesh.axis(step.axis)
            steps.append(Step(StepKind(step.kind), axis, at, step.after))
            at = step.after
        found[boxing.key] = tuple(steps)
    return found


@dataclass(frozen=True)
class Lowered:
    """A plan carried out on the logical graph; yields the program of any rank."""

    program: Program
    plan: Plan
    rules: RuleSet

    @classmethod
    def of(cls, captured: Captured, plan: Plan, rules: RuleSet) -> Lowered:
        """Run the sequence of passes on a captured program."""
        program = run_sequence(captured.program, sequence(plan, rules))
        return cls(program, plan, rules)

    def at(self, coordinates: tuple[int, ...]) -> LocalProgram:
        """Return what the rank at ``coordinates`` runs."""
        steps = lowerings_of(self.plan)
        local = localize(self.program, coordinates, self.rules, steps)
        return fuse_small_ops(local, self.plan.fusion)
