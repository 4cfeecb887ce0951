"""From a solved search problem to the plan: every decision, and what it predicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from torch import fx

from partita.compiler.capture.capture import Captured
from partita.compiler.capture.fingerprint import fingerprint, print_constants
from partita.compiler.cost.boxing import cheapest_steps, step_seconds
from partita.compiler.cost.memory import timeline
from partita.compiler.cost.step import Step, payload_bytes, step_wire_bytes
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.again import again_key, needed_again
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import (
    InputKind,
    InputRole,
    OutputKind,
    Phase,
    Value,
    info,
    op_name,
    operands,
    type_of,
    value_of,
)
from partita.compiler.ir.sbp import Placement
from partita.compiler.plan.document import (
    Boxing,
    Buffer,
    CollectiveTotal,
    LoweringStep,
    ModelId,
    Node,
    Output,
    Parameter,
    ParameterPlacements,
    PlanOptions,
    Predicted,
    Ref,
    Role,
    SearchResult,
    Stage,
    boxing_key,
)
from partita.compiler.plan.inputs import from_capture
from partita.compiler.plan.plan import Plan
from partita.compiler.search.again import Again
from partita.compiler.search.chosen import read_choices
from partita.compiler.search.pose import Posed
from partita.compiler.search.reported import derived_rows, find_reported


@dataclass(frozen=True)
class Found:
    """An assignment and how it was found.

    ``recompute`` are keys of nodes of the forward and of boxings that are made again
    for the backward, as far as it uses them; ``asked`` are patterns of more (again.py).
    """

    choices: Sequence[int]
    result: SearchResult
    recompute: Collection[str] = ()
    asked: Sequence[str] = ()


def decide(
    captured: Captured,
    posed: Posed,
    found: Found,
    *,
    version: str,
    class_name: str,
    options: PlanOptions,
) -> Plan:
    """Return the plan that carries out ``found``.

    Args:
        captured: the program and the spec of its inputs.
        posed: the problem that was solved.
        found: a choice per node of the problem.
        version: of Partita.
        class_name: of the model.
        options: what the plan was asked for.
    """
    decider = _Decider(captured, posed, found, options)
    return decider.decide(version, class_name)


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
        chosen = read_choices(captured.program, posed, found.choices)
        self.asked = Again(chosen.program, posed.candidates.rules, found.asked)
        again = {*found.recompute, *self.asked.nodes()}
        self.again = needed_again(chosen.program, again)
        self.chosen = chosen.with_again(self.again)
        self.program = self.chosen.program

    def decide(self, version: str, class_name: str) -> Plan:
        options = self.options
        nodes = self._nodes()
        outputs = self._outputs()
        boxings = self._boxings()
        order = tuple(info(node).key for node in self.program.nodes())
        plan = Plan(
            partita=version,
            model=ModelId(class_name, fingerprint(self.captured.program)),
            mesh=self.mesh,
            stages=(Stage(self.mesh, tuple(range(self.mesh.size)), order),),
            hardware=self.hardware.to_dict(),
            inputs=from_capture(self.captured.inputs),
            options=options,
            parameters=self._parameters(),
            buffers=self._buffers(),
            nodes=nodes,
            expanded=self.chosen.expanded,
            boxings=boxings,
            recompute=(*self.again, *_made_twice(boxings)),
            order=order,
            outputs=outputs,
            collectives=_totals(boxings, self.mesh),
            predicted=Predicted(0.0, 0),
            search=self.found.result,
            reported=find_reported(self.posed, nodes),
            derived_rules=derived_rows(self.posed.candidates),
        )
        return replace(plan, predicted=self._predicted(plan))

    def _nodes(self) -> dict[str, Node]:
        roles = dict(self.program.placeholders())
        return {
            info(node).key: self._node(node, roles.get(node))
            for node in self.program.nodes()
        }

    def _node(self, node: fx.Node, role: InputRole | None) -> Node:
        fact, chosen = info(node), self.chosen.nodes[node]
        return Node(
            op=op_name(node),
            types=fact.types,
            signature=chosen.signature,
            operands=tuple(self._ref(value) for value in operands(node)),
            constants=() if role else print_constants(node),
            stage=fact.stage,
            phase=fact.phase,
            module=fact.module,
            source=fact.source,
            role=Role(role.kind, role.name) if role else None,
            seconds=chosen.seconds,
            flops=chosen.flops,
            ways=chosen.ways,
            alternatives=chosen.alternatives,
        )

    def _ref(self, value: Value) -> Ref:
        return Ref(info(value.node).key, value.index)

    def _outputs(self) -> tuple[Output, ...]:
        return tuple(
            Output(
                role.kind,
                role.name,
                self._ref(value_of(node)),
                self.chosen.outputs[role],
            )
            for node, role in self.program.results()
        )

    def _boxings(self) -> tuple[Boxing, ...]:
        found: list[Boxing] = []
        for (value, target), users in self.chosen.consumers().items():
            source = self.chosen.nodes[value.node].signature.results[value.index]
            assert source is not None
            if source == target:
                continue
            key = boxing_key(info(value.node).key, value.index, target)
            halves = {phase is Phase.FORWARD for phase in users.values()}
            wanted = key in self.found.recompute or self.asked.has_boxing(
                value, key, users
            )
            if not wanted or len(halves) == 1:
                found.append(self._boxing(key, value, source, target, tuple(users)))
                continue
            for own, in_forward in ((key, True), (again_key(key), False)):
                part = tuple(
                    user
                    for user, phase in users.items()
                    if (phase is Phase.FORWARD) is in_forward
                )
                found.append(self._boxing(own, value, source, target, part))
        return tuple(found)

    def _boxing(
        self,
        key: str,
        value: Value,
        source: Placement,
        target: Placement,
        users: tuple[str, ...],
    ) -> Boxing:
        type_ = type_of(value)
        steps = cheapest_steps(type_, source, target, self.mesh, self.hardware).steps
        return Boxing(
            key=key,
            producer=info(value.node).key,
            index=value.index,
            source=source,
            target=target,
            lowering=tuple(self._lowering(value, step) for step in steps),
            consumers=users,
            why=f"made as {source}, wanted as {target} by {users[0]}"
            + (f" and {len(users) - 1} more" if len(users) > 1 else ""),
        )

    def _lowering(self, value: Value, step: Step) -> LoweringStep:
        type_ = type_of(value)
        return LoweringStep(
            kind=str(step.kind),
            axis=self.mesh.names[step.axis],
            after=step.after,
            payload=payload_bytes(type_, step, self.mesh),
            bytes=step_wire_bytes(type_, step, self.mesh),
            seconds=step_seconds(type_, step, self.mesh, self.hardware),
        )

    def _parameters(self) -> dict[str, Parameter]:
        trained = {
            r.name for r in self.program.outputs if r.kind is OutputKind.GRADIENT
        }
        found: dict[str, Parameter] = {}
        for node, role in self.program.placeholders():
            if role.kind is InputKind.PARAMETER:
                storage = self.chosen.nodes[node].signature.results[0]
                assert storage is not None
                held = storage if role.name in trained else None
                type_ = type_of(Value(node, 0))
                found[role.name] = Parameter(
                    shape=type_.shape,
                    dtype=type_.dtype,
                    placements=ParameterPlacements(
                        use=self._first_use(node, storage),
                        storage=storage,
                        gradient=held,
                        optimizer=held,
                    ),
                    aliases=role.aliases,
                )
        return found

    def _first_use(self, node: fx.Node, storage: Placement) -> Placement:
        for user in node.users:
            if user.op == "call_function":
                wanted = self.chosen.nodes[user].signature.operands
                for value, want in zip(operands(user), wanted, strict=True):
                    if value.node is node:
                        return want
        return storage

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

    def _predicted(self, plan: Plan) -> Predicted:
        seconds = {"compute": 0.0, "update": 0.0}
        for node, chosen in self.chosen.nodes.items():
            is_call = node.op == "call_function"
            seconds["compute" if is_call else "update"] += chosen.seconds
        for boxing in plan.boxings:
            for step in boxing.lowering:
                part = f"communication {step.axis}" if step.bytes else "local copies"
                seconds[part] = seconds.get(part, 0.0) + step.seconds
        memory = timeline(plan)
        parts = memory.by_category(memory.peak)
        total = sum(seconds.values())
        return Predicted(
            total, memory.peak_bytes, seconds, {str(k): v for k, v in parts.items()}
        )


def _made_twice(boxings: Sequence[Boxing]) -> tuple[str, ...]:
    keys = {boxing.key for boxing in boxings}
    return tuple(b.key for b in boxings if again_key(b.key) in keys)


def _totals(boxings: Sequence[Boxing], mesh: Mesh) -> tuple[CollectiveTotal, ...]:
    counts: Counter[tuple[str, str]] = Counter()
    payloads: Counter[tuple[str, str]] = Counter()
    for boxing in boxings:
        for step in boxing.lowering:
            if step.payload and mesh.sizes[mesh.axis(step.axis)] > 1:
                counts[step.kind, step.axis] += 1
                payloads[step.kind, step.axis] += step.payload
    return tuple(
        CollectiveTotal(kind, axis, counts[kind, axis], payloads[kind, axis])
        for kind, axis in sorted(counts)
    )
