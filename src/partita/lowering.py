"""From a plan and the model it is for to what each rank runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import torch
from torch import fx

from partita.compiler.capture.capture import Captured, capture_spec
from partita.compiler.capture.fingerprint import fingerprint
from partita.compiler.capture.inputs import InputSpec
from partita.compiler.capture.scored_model import LossFunction
from partita.compiler.collection import collection_paused
from partita.compiler.cost.step import Step, find_step
from partita.compiler.errors import BadOptions, BadPlan, CaptureFailed
from partita.compiler.hardware.profile import Hardware, load_hardware
from partita.compiler.ir.again import again_key
from partita.compiler.ir.layout import shard_shape
from partita.compiler.ir.local_program import Closing, LocalProgram
from partita.compiler.ir.program import Program, info, op_name, operands
from partita.compiler.ir.sbp import Placement, Reduction
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.beside import completed_beside
from partita.compiler.plan.document import Boxing, Document, LossKind, Ref
from partita.compiler.plan.inputs import to_capture
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.stages import (
    read_schedule,
    stage_documents,
    stage_of_calls,
)
from partita.compiler.plan.uses import type_of
from partita.compiler.rules.calls import call_of
from partita.compiler.rules.rule import Call, Rule, RuleSet
from partita.compiler.rules.table import default_rules
from partita.compiler.search.stretches import Stretch
from partita.microbatched import in_microbatches
from partita.passes.annotate_stages import AnnotateStages
from partita.passes.base import run_sequence
from partita.passes.begin_sums import begin_sums
from partita.passes.bring_parameters import bring_parameters
from partita.passes.complete_gradients import complete_gradients, without_completing
from partita.passes.cut_stages import Cutting, cut_stages
from partita.passes.exchange_instead import exchange_instead
from partita.passes.exchange_pairs import exchange_pairs
from partita.passes.fuse_small_ops import fuse_small_ops
from partita.passes.join_products import join_products
from partita.passes.localize import localize
from partita.passes.lower_boxings import lowering_key
from partita.passes.part_messages import part_messages
from partita.passes.reduce_beside import reduce_beside
from partita.passes.send_together import send_together
from partita.passes.sequence import sequence
from partita.passes.share_gradients import ShareGradients
from partita.passes.sink_waits import sink_waits
from partita.passes.split_phases import split_phases

_Placed = tuple[tuple[int, ...], Placement]
_Stepped = tuple[tuple[int, ...], Step]


@collection_paused()
def capture_for(
    model: torch.nn.Module,
    plan: Plan,
    spec: InputSpec | None = None,
    loss: LossFunction | None = None,
    rules: RuleSet = default_rules,
) -> Captured:
    """Capture ``model`` again, as the plan's example called it or as ``spec`` says.

    What is captured is the program of one of the plan's microbatches.

    Raises:
        BadOptions: when the plan's loss was a function and none is given.
        BadPlan: when the plan is of another model; the message says what differs.
    """
    loss = loss_of(plan, loss)
    spec = spec or to_capture(plan.inputs)
    name, planned = type(model).__name__, plan.model.class_name
    try:
        captured = capture_spec(
            model,
            spec,
            loss=loss,
            train=plan.options.train,
            precision=plan.options.precision,
        )
    except CaptureFailed as error:
        if name == planned:
            raise
        raise BadPlan(
            f"the plan was made for another model ({planned}) than this {name}, which "
            f"cannot be called as that was: {error}"
        ) from error
    captured = in_microbatches(captured, plan.microbatches, rules)
    check_same_model(name, captured.program, plan)
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


def check_same_model(name: str, program: Program, plan: Plan) -> None:
    """Check that ``plan`` was made for ``program``, and says the same of its calls.

    Raises:
        BadPlan: naming the first node that differs, of what enters if there is one.
    """
    if fingerprint(program) == plan.model.fingerprint:
        _check_calls(program, plan)
        return
    found = {info(node).key: info(node).types for node in program.nodes()}
    parts = {key for item in plan.expanded.values() for key in item.nodes}
    parts |= {again_key(key) for key in plan.recompute}
    planned = {k: node.types for k, node in plan.nodes.items() if k not in parts}
    planned |= {key: found.get(key, ()) for key in plan.expanded}
    alone = [("the plan", key) for key in planned if key not in found]
    alone += [("the model", key) for key in found if key not in planned]
    unlike = [key for key in planned if key in found and planned[key] != found[key]]
    if alone:
        enters = {info(node).key for node, _ in program.placeholders()}
        enters |= {key for key, node in plan.nodes.items() if node.role is not None}
        where, key = min(alone, key=lambda pair: pair[1] not in enters)
        difference = f"only {where} has {key!r}"
    elif unlike:
        wanted, got = (
            ", ".join(str(t) for t in types[unlike[0]]) for types in (planned, found)
        )
        difference = f"{unlike[0]!r} is {got}, in the plan {wanted}"
    else:
        difference = "their constant arguments differ"
    raise BadPlan(
        f"the plan was made for another model ({plan.model.class_name}, fingerprint "
        f"{plan.model.fingerprint[:12]}) than this {name} "
        f"({fingerprint(program)[:12]}): {difference}; plan it again"
    )


def _check_calls(program: Program, plan: Plan) -> None:
    """Check that an edited plan still describes the calls of its model."""
    keys = {info(node).key for node in program.nodes()}
    for node in program.nodes():
        key = info(node).key
        planned = plan.nodes.get(key)
        if planned is None:  # taken apart, or of another stage
            continue
        used = tuple(Ref(info(v.node).key, v.index) for v in operands(node))
        given = planned.operands
        if len(given) == len(used):  # where what is made otherwise is as it should be
            pairs = zip(given, used, strict=True)
            given = tuple(b if a.key not in keys else a for a, b in pairs)
        for what, found, wanted in (
            ("op", planned.op, op_name(node)),
            ("types", planned.types, info(node).types),
            ("operands", given, used),
        ):
            if found != wanted:
                raise BadPlan(
                    f"nodes.{key}.{what}: found {_printed(found)}, wanted "
                    f"{_printed(wanted)}, as in the model; of a call only placements "
                    "may be edited"
                )


def _printed(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, cast("tuple[object, ...]", value))) or "none"
    return str(value)


def lowerings_of(plan: Document) -> dict[str, tuple[Step, ...]]:
    """Return the steps of every boxing of ``plan``, by its key.

    Raises:
        BadPlan: for a step that does not do what it says.
    """
    return {boxing.key: tuple(_steps(boxing, plan)) for boxing in plan.boxings}


def _steps(boxing: Boxing, plan: Document) -> Iterator[Step]:
    at, type_ = boxing.source, type_of(plan, boxing.ref)
    for stated in boxing.lowering:
        axis = plan.mesh.axis(stated.axis)
        step = find_step(type_.shape, at, stated.after, axis, plan.mesh)
        if step is None or str(step.kind) != stated.kind:
            known = "there is no such step" if step is None else f"that is {step.kind}"
            raise BadPlan(
                f"boxings: {boxing.key!r} goes from {at} to {stated.after} on "
                f"{stated.axis} by {stated.kind}; {known}"
            )
        yield step
        at = stated.after


def lower(
    captured: Captured, plan: Plan, rules: RuleSet = default_rules
) -> tuple[Lowered, ...]:
    """Carry out a plan on a captured program; return what it makes of each stage.

    Raises:
        BadPlan: when the plan contradicts itself, the program or the rules.
    """
    return tuple(lower_stages(captured, plan, range(len(plan.stages)), rules).values())


@collection_paused()
def lower_stages(
    captured: Captured, plan: Plan, numbers: Iterable[int], rules: RuleSet
) -> dict[int, Lowered]:
    """As ``lower``, for some stages of a plan alone, by their numbers."""
    plan.validate()
    if len(plan.stages) == 1:
        return {number: Lowered.of(captured, plan, rules) for number in numbers}
    program = _annotated(captured.program, stage_of_calls(plan))
    cutting = Cutting.of(program, len(plan.stages))
    documents = stage_documents(plan)
    return {
        number: Lowered.of(
            replace(captured, program=cutting.stage(number)), documents[number], rules
        )
        for number in numbers
    }


def in_stages(
    program: Program, stage_of: Mapping[str, int], num_stages: int
) -> tuple[Program, ...]:
    """Return the programs of the stages that ``stage_of`` cuts a program into.

    Raises:
        BadPlan: for a call without a stage, or a cut that cannot be.
    """
    return cut_stages(_annotated(program, stage_of), num_stages)


def stage_alone(stretch: Stretch) -> Program:
    """Return the program of the stage that a stretch is of."""
    program = _annotated(stretch.program, stretch.stage_of)
    return Cutting.of(program, stretch.num_stages).stage(stretch.number)


def _annotated(program: Program, stage_of: Mapping[str, int]) -> Program:
    return run_sequence(program, (AnnotateStages(stage_of), ShareGradients()))


@dataclass(frozen=True)
class Lowered:
    """A stage's plan carried out on its logical graph; yields any rank's program.

    ``program`` is what every microbatch runs, ``completing`` what follows all of them.
    """

    program: Program
    completing: tuple[Program, ...]
    plan: Plan
    rules: RuleSet
    steps: Mapping[str, tuple[Step, ...]]

    @classmethod
    def of(cls, captured: Captured, plan: Plan, rules: RuleSet) -> Lowered:
        """Run the sequence of passes on a captured program of one stage.

        Raises:
            BadPlan: when the plan contradicts the program or the rules.
        """
        rules = _with_derived(rules, captured.program, plan)
        program = run_sequence(captured.program, sequence(plan, rules))
        completing = tuple(complete_gradients(program, plan))
        program = without_completing(program, plan)
        return cls(program, completing, plan, rules, lowerings_of(plan))

    def at(self, coordinates: tuple[int, ...]) -> LocalProgram:
        """Return what the rank at ``coordinates`` runs."""
        local = localize(self.program, coordinates, self.rules, self.steps)
        joined = join_products(local, self.plan.joined)
        fused = fuse_small_ops(joined, self.plan.fusion)
        together = send_together(fused, self.plan.buckets)
        sunk = sink_waits(part_messages(together, self.plan))
        exchanged = exchange_instead(begin_sums(sunk), self.hardware)
        return exchange_pairs(exchanged)

    @cached_property
    def hardware(self) -> Hardware:
        """The machine that the plan is for."""
        return load_hardware(self.plan.hardware)

    def parted(self, local: LocalProgram) -> tuple[LocalProgram, ...]:
        """Return the forward and the backward of what a rank runs.

        The backward is in two where the schedule has it so.
        """
        (stage,) = {node.stage for node in self.plan.nodes.values()}
        is_cut = stage in read_schedule(self.plan).cut
        return split_phases(local, 3 if is_cut else 2)

    def closing(
        self, parts: Sequence[LocalProgram], completing: Sequence[LocalProgram]
    ) -> Closing | None:
        """Return the last backward of a stage's parts with what begins in it."""
        return reduce_beside(parts[-1], completing, completed_beside(self.plan))

    def bringing_at(self, coordinates: tuple[int, ...]) -> tuple[LocalProgram, ...]:
        """Return what brings parameters there from their optimizers."""
        programs = bring_parameters(self.program, self.plan)
        return tuple(self._local(program, coordinates) for program in programs)

    def completing_at(self, coordinates: tuple[int, ...]) -> tuple[LocalProgram, ...]:
        """Return what completes there the sums over microbatches."""
        return tuple(self._local(program, coordinates) for program in self.completing)

    def _local(self, program: Program, coordinates: tuple[int, ...]) -> LocalProgram:
        local = localize(program, coordinates, self.rules, self.steps)
        sent = send_together(local, self.plan.buckets)
        return exchange_pairs(exchange_instead(sent, self.hardware))

    def of_all(self) -> list[LocalProgram]:
        """Return what every rank runs; ranks with equal programs share one graph."""
        placed, stepped = self._placed(), self._stepped()
        known: dict[object, LocalProgram] = {}
        found: list[LocalProgram] = []
        for coordinates in self.plan.mesh.all_coordinates():
            kind = self._kind(placed, stepped, coordinates)
            if kind not in known:
                known[kind] = self.at(coordinates)
            found.append(replace(known[kind], coordinates=coordinates))
        return found

    def _kind(
        self,
        placed: tuple[_Placed, ...],
        stepped: tuple[_Stepped, ...],
        coordinates: tuple[int, ...],
    ) -> object:
        """Return what ranks have equal that run one program.

        It is the shapes of all that they hold, and how they lower each step: of shards
        of one shape too, ranks may send and put together other pieces.
        """
        mesh = self.plan.mesh
        shapes = tuple(shard_shape(*holding, mesh, coordinates) for holding in placed)
        return shapes, tuple(lowering_key(*s, mesh, coordinates) for s in stepped)

    def _placed(self) -> tuple[_Placed, ...]:
        """Return the shapes and placements of all that the program computes, once."""
        return tuple(
            {
                (type_.shape, placement): None
                for node in self.program.nodes()
                for type_, placement in _results(node)
            }
        )

    def _stepped(self) -> tuple[_Stepped, ...]:
        """Return the shapes and steps of all boxings, once."""
        return tuple(
            {
                (type_of(self.plan, boxing.ref).shape, step): None
                for boxing in self.plan.boxings
                for step in self.steps[boxing.key]
            }
        )


def _with_derived(rules: RuleSet, program: Program, plan: Document) -> RuleSet:
    """Return ``rules`` with the rows that the plan brings for single calls."""
    calls = {info(node).key: call_of(node) for node in program.calls()}
    rows: dict[Call, Rule] = {}
    for row in plan.derived_rules:
        reduce = None if row.reduce is None else Reduction(row.reduce)
        rule = Rule(row.op, row.dims, row.linear, reduce)
        rows |= {calls[key]: rule for key in row.nodes if key in calls}
    return rules.with_derived(rows)


def _results(node: fx.Node) -> Iterator[tuple[TensorType, Placement]]:
    fact = info(node)
    assert fact.signature is not None
    for type_, placement in zip(fact.types, fact.signature.results, strict=True):
        if type_ is not None and placement is not None:
            yield type_, placement
