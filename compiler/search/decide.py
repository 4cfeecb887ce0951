"""From a solved search problem to the plan: every decision, and what it predicts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import fx

from partita.compiler.capture.capture import Captured
from partita.compiler.capture.constants import print_constants
from partita.compiler.cost.memory import timeline
from partita.compiler.errors import BadOptions
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.again import needed_again
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import (
    InputKind,
    OutputKind,
    OutputRole,
    Value,
    info,
    is_short_copy,
    op_name,
    type_of,
)
from partita.compiler.ir.sbp import Placement
from partita.compiler.plan.buckets import collective_totals
from partita.compiler.plan.document import (
    Boxing,
    Buffer,
    ModelId,
    Node,
    Output,
    Parameter,
    ParameterPlacements,
    PlanOptions,
    Predicted,
    Ref,
    Role,
)
from partita.compiler.plan.inputs import from_capture
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.search_result import SearchResult
from partita.compiler.plan.stage_records import Stage
from partita.compiler.search.again import Again
from partita.compiler.search.boxings import boxings_of, made_twice
from partita.compiler.search.chosen import Chosen, ChosenNode, read_choices
from partita.compiler.search.held import Held, update_seconds
from partita.compiler.search.pose import Posed, adding_seconds
from partita.compiler.search.reported import derived_rows, find_reported
from partita.compiler.simulate.hidden import with_hidden

MOST_ALTERNATIVES = 6
"""Of its other choices each node of a plan is told so many, unless asked for others."""


@dataclass(frozen=True)
class Found:
    """An assignment and how it was found.

    ``recompute`` are keys of nodes of the forward and of boxings that are made again
    for the backward, as far as it uses them; ``asked`` are patterns of more (again.py).
    ``held`` is how trained parameters are held, by name; of those that it lacks their
    choices say it. ``most_alternatives`` of its other choices each node is told of.
    """

    choices: Sequence[int]
    result: SearchResult
    recompute: Collection[str] = ()
    asked: Sequence[str] = ()
    held: Mapping[str, Held] = field(default_factory=dict[str, Held])
    most_alternatives: int = MOST_ALTERNATIVES


def draft(
    captured: Captured,
    posed: Posed,
    found: Found,
    *,
    version: str,
    class_name: str,
    options: PlanOptions,
) -> Plan:
    """Return the plan that carries out ``found``, but for what it holds.

    It states what its step takes with one thing after another; see ``counted``.

    Args:
        captured: the program and the spec of its inputs.
        posed: the problem that was solved.
        found: a choice per node of the problem.
        version: of Partita.
        class_name: of the model.
        options: what the plan was asked for.
    """
    return _Decider(captured, posed, found, options).decide(version, class_name)


def counted(draft: Plan) -> Plan:
    """Return the plan of a draft: with what its step holds, messages beside computing.

    Bytes are of the rank that holds most.
    """
    memory, apart = timeline(draft), draft.predicted
    held = replace(apart, bytes=memory.peak_bytes, bytes_by_part=memory.at_peak)
    return replace(draft, predicted=with_hidden(held, draft))


class _Decider:
    def __init__(
        self, captured: Captured, posed: Posed, found: Found, options: PlanOptions
    ) -> None:
        self.captured = captured
        self.options = options
        self.posed = posed
        self.found = found
        self.mesh: Mesh = posed.problem.mesh
        self.hardware: Hardware = posed.candidates.hardware
        chosen = read_choices(
            captured.program, posed, found.choices, found.most_alternatives
        )
        self.as_posed = chosen.nodes
        if found.recompute or found.asked:
            chosen = chosen.whole
        self.asked = Again(chosen.program, posed.candidates.rules, found.asked)
        self.recompute = chosen.in_parts(found.recompute)
        again = {*self.recompute, *self.asked.nodes()}
        self.again = needed_again(chosen.program, again)
        chosen = chosen.with_again(self.again)
        self.program = chosen.program
        self.held = self._held(chosen)
        self.chosen = self._with_held(chosen)

    def decide(self, version: str, class_name: str) -> Plan:
        options = self.options
        nodes = self._nodes()
        outputs = self._outputs()
        boxings = boxings_of(
            self.chosen,
            self.held,
            self.recompute,
            self.asked,
            self.mesh,
            self.hardware,
        )
        order = tuple(nodes)
        plan = Plan(
            partita=version,
            model=ModelId(class_name, self.captured.fingerprint),
            mesh=self.mesh,
            stages=(Stage(self.mesh, tuple(range(self.mesh.size)), order),),
            hardware=self.hardware.to_dict(),
            inputs=from_capture(self.captured.inputs),
            options=options,
            parameters=self._parameters(boxings),
            buffers=self._buffers(),
            nodes=nodes,
            expanded=self.chosen.expanded,
            boxings=boxings,
            microbatches=self.program.in_time.count,
            recompute=(*self.again, *made_twice(boxings)),
            order=order,
            outputs=outputs,
            collectives=(),
            predicted=Predicted(0.0, 0),
            search=self.found.result,
            reported=find_reported(self.posed, self.as_posed, nodes),
            derived_rules=derived_rows(self.posed.candidates),
        )
        seconds = self._seconds_by_part(plan)
        apart = Predicted(sum(seconds.values()), 0, seconds)
        totals = collective_totals(plan)
        return replace(plan, collectives=totals, predicted=apart)

    def _held(self, chosen: Chosen) -> dict[str, Held]:
        """Return how every trained parameter is held, by name."""
        trained = self.program.trained
        found: dict[str, Held] = {}
        for node, role in self.program.placeholders():
            if role.kind is InputKind.PARAMETER and role.name in trained:
                held = self.found.held.get(role.name, chosen.nodes[node].held)
                assert held is not None
                found[role.name] = held
        self._check_shared(found, chosen.results)
        return found

    def _check_shared(
        self, held: Mapping[str, Held], results: Sequence[tuple[Value, OutputRole]]
    ) -> None:
        """Check that parameters of one gradient tensor want it completed alike."""
        first: dict[tuple[Value, Placement], str] = {}
        for value, role in results:
            if role.kind is OutputKind.GRADIENT:
                way = value, held[role.name].optimizer
                known = first.setdefault(way, role.name)
                if held[known].gradient != held[role.name].gradient:
                    raise BadOptions(
                        f"pins of {known!r} and {role.name!r}: they have one gradient, "
                        f"which is pinned to {held[known].gradient} and to "
                        f"{held[role.name].gradient}; pin it to one of them"
                    )

    def _with_held(self, chosen: Chosen) -> Chosen:
        """Return ``chosen`` with gradients that leave as the optimizer takes them."""
        outputs = {
            role: self.held[role.name].optimizer
            if role.kind is OutputKind.GRADIENT
            else placement
            for role, placement in chosen.outputs.items()
        }
        nodes = dict(chosen.nodes)
        for node, role in self.program.placeholders():
            held = self.held.get(role.name)
            if role.kind is InputKind.PARAMETER and held is not None:
                seconds = update_seconds(
                    type_of(Value(node, 0)),
                    held.optimizer,
                    self.mesh,
                    self.hardware,
                    self.options.optimizer,
                )
                nodes[node] = replace(nodes[node], seconds=seconds)
        return replace(chosen, nodes=nodes, outputs=outputs)

    def _nodes(self) -> dict[str, Node]:
        roles = dict(self.program.placeholders())
        refs: dict[Value, Ref] = {}
        found: dict[str, Node] = {}
        candidates = self.posed.candidates
        drafted, printed = candidates.drafted, candidates.reading.constants
        calls, used = candidates.reading.calls, self.chosen.used
        for node, chosen in self.chosen.nodes.items():
            fact = info(node)
            known = drafted.get(node)
            if known is not None and known[1] == used[node] and _does(known[0], chosen):
                found[fact.key] = known[0]
                continue
            role, types = None, fact.types
            constants = printed.get(node)
            if constants is not None:
                op, types = calls[node].op, calls[node].results
            elif node in roles:
                op, role, constants = op_name(node), roles[node], ()
            else:  # made again, or a part of a call
                op, constants = op_name(node), print_constants(node)
            operands: list[Ref] = []
            for value in used[node]:
                ref = refs.get(value)
                if ref is None:
                    ref = refs[value] = Ref(info(value.node).key, value.index)
                operands.append(ref)
            found[fact.key] = made = Node(
                op,
                types,
                chosen.signature,
                tuple(operands),
                constants,
                fact.stage,
                fact.phase,
                fact.module,
                fact.source,
                None if role is None else Role(role.kind, role.name),
                chosen.seconds,
                chosen.flops,
                chosen.ways,
                chosen.alternatives,
            )
            drafted[node] = made, used[node]
        return found

    def _outputs(self) -> tuple[Output, ...]:
        return tuple(
            Output(
                role.kind,
                role.name,
                Ref(info(value.node).key, value.index),
                self.chosen.outputs[role],
            )
            for value, role in self.chosen.results
        )

    def _parameters(self, boxings: Sequence[Boxing]) -> dict[str, Parameter]:
        passed = {
            user: {boxing.source, *(step.after for step in boxing.lowering)}
            for boxing in boxings
            for user in boxing.consumers
        }
        found: dict[str, Parameter] = {}
        for node, role in self.program.placeholders():
            if role.kind is InputKind.PARAMETER:
                storage = self.chosen.nodes[node].signature.results[0]
                assert storage is not None
                held = self.held.get(role.name)
                optimizer = gradient = None
                if held is not None:
                    optimizer, gradient = held.optimizer, held.gradient
                    # What is made as the optimizer wants it goes nowhere else.
                    if gradient not in passed.get(f"gradient:{role.name}", ()):
                        gradient = optimizer
                type_ = type_of(Value(node, 0))
                found[role.name] = Parameter(
                    shape=type_.shape,
                    dtype=type_.dtype,
                    placements=ParameterPlacements(
                        use=self._first_use(node, storage),
                        storage=storage,
                        gradient=gradient,
                        optimizer=optimizer,
                    ),
                    aliases=role.aliases,
                )
        return found

    def _first_use(self, node: fx.Node, storage: Placement) -> Placement:
        user = self._first_users.get(node)
        if user is None:
            return storage
        if is_short_copy(user) and user in self._first_users:
            return self._first_use(user, storage)
        wanted = self.chosen.nodes[user].signature.operands
        pairs = zip(self.chosen.used[user], wanted, strict=True)
        return next(want for value, want in pairs if value.node is node)

    @cached_property
    def _first_users(self) -> dict[fx.Node, fx.Node]:
        """The first node that uses each."""
        found: dict[fx.Node, fx.Node] = {}
        for user, values in self.chosen.used.items():
            for value in values:
                found.setdefault(value.node, user)
        return found

    def _buffers(self) -> dict[str, Buffer]:
        mutated = {
            r.name for r in self.program.outputs if r.kind is OutputKind.MUTATED_BUFFER
        }
        found: dict[str, Buffer] = {}
        for node, role in self.program.placeholders():
            if role.kind is InputKind.BUFFER:
                type_ = type_of(Value(node, 0))
                placement = self.chosen.nodes[node].signature.results[0]
                assert placement is not None
                found[role.name] = Buffer(
                    shape=type_.shape,
                    dtype=type_.dtype,
                    placement=placement,
                    aliases=role.aliases,
                    mutated=role.name in mutated,
                )
        return found

    def _seconds_by_part(self, plan: Plan) -> dict[str, float]:
        seconds = {"compute": 0.0, "update": 0.0}
        for node, chosen in self.chosen.nodes.items():
            is_call = node.op == "call_function"
            seconds["compute" if is_call else "update"] += chosen.seconds
        if plan.microbatches > 1:
            seconds["accumulation"] = self._adding_seconds()
        for boxing in plan.boxings:
            for step in boxing.lowering:
                part = f"communication {step.axis}" if step.bytes else "local copies"
                seconds[part] = seconds.get(part, 0.0) + step.seconds
        return seconds

    def _adding_seconds(self) -> float:
        """Return the time of adding up what the microbatches make."""
        made = {value for value, role in self.chosen.results if role.kind.adds_up}
        total, count = 0.0, self.program.in_time.count
        for value in sorted(made, key=lambda v: (info(v.node).key, v.index)):
            placement = self.chosen.nodes[value.node].signature.results[value.index]
            assert placement is not None
            total += adding_seconds(
                type_of(value), placement, self.mesh, self.hardware, count
            )
        return total


def _does(node: Node, chosen: ChosenNode) -> bool:
    """Whether a node of a plan does what was chosen."""
    return (
        node.signature is chosen.signature
        and node.seconds == chosen.seconds
        and (node.flops, node.ways) == (chosen.flops, chosen.ways)
        and node.alternatives is chosen.alternatives
    )
