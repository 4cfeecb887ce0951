"""Cut a program, forward and backward together, into one program for each stage.

Before          %h = mm(%x, %w) of stage 0;  %y = mm(%h, %v) of stage 1
After, stage 0  %h = mm(%x, %w);  return sent-forward "h to stage 1" %h
After, stage 1  %h = received-forward "h";  %y = mm(%h, %v)

A tensor goes from the stage that makes it to each stage that uses it, over stages in
between too: forward, to a later one, or backward, to an earlier one. Inputs of the
batch, constants and seeds enter every stage that uses them. A parameter or buffer is at
home in the stage that updates it, else in the first that uses it; it enters others as
``shared``.

Requires  well_formed
Ensures   well_formed   of every stage's program
Keeps     names, keys and types; the order of what a stage has
Not here  which stage a call is of (annotate-stages)
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import fx

from partita.compiler.capture.torch_private import uncompiled
from partita.compiler.errors import BadPlan
from partita.compiler.invariants import well_formed
from partita.compiler.ir.program import (
    InputKind,
    InputRole,
    NodeInfo,
    OutputKind,
    OutputRole,
    Phase,
    Program,
    Value,
    info,
    set_info,
    type_of,
    value_of,
)
from partita.compiler.ir.sbp import Broadcast
from partita.compiler.ir.stages import at_stage, sent_name
from partita.compiler.plan.document import Ref

Ways = dict[tuple[Value, int], InputKind]
"""Which values go to which stage, and how they enter there."""

_SENT = {
    InputKind.RECEIVED_FORWARD: OutputKind.SENT_FORWARD,
    InputKind.RECEIVED_BACKWARD: OutputKind.SENT_BACKWARD,
}


def cut_stages(program: Program, num_stages: int) -> tuple[Program, ...]:
    """Return the programs of the stages that the calls of ``program`` name.

    Raises:
        BadPlan: for a value that would have to go backward in the forward, or forward
            in the backward.
    """
    cutting = Cutting.of(program, num_stages)
    return tuple(cutting.stage(stage) for stage in range(num_stages))


@dataclass(frozen=True)
class Cutting:
    """What goes where when a program is cut.

    Attributes:
        program: whose calls name their stages.
        ways: what crosses from stage to stage.
        homes: the stages that each placeholder enters, its home first.
        calls: by stage, its calls and what chooses among their results, in order.
    """

    program: Program
    ways: Ways
    homes: dict[fx.Node, tuple[int, ...]]
    calls: tuple[tuple[fx.Node, ...], ...]

    @classmethod
    def of(cls, program: Program, num_stages: int) -> Cutting:
        """Return how ``program`` is cut where its calls say; see ``cut_stages``."""
        calls: list[list[fx.Node]] = [[] for _ in range(num_stages)]
        for node in program.graph.nodes:
            if node.op == "call_function":
                calls[info(value_of(node).node).stage].append(node)
        return cls(
            program,
            _ways(program),
            _homes(program, num_stages),
            tuple(map(tuple, calls)),
        )

    def stage(self, stage: int) -> Program:
        """Return the program of one stage."""
        found = _Stage(self, stage).build()
        well_formed(found)
        return found


def _ways(program: Program) -> Ways:
    """Return what crosses from stage to stage."""
    found: Ways = {}
    for node in program.calls():
        for leaf in node.all_input_nodes:
            value = value_of(leaf)
            way = value, info(node).stage
            if value.node.op == "placeholder" or info(value.node).stage == way[1]:
                continue
            found.setdefault(way, _kind(value.node, node))
    return found


def _kind(maker: fx.Node, user: fx.Node) -> InputKind:
    made, used = info(maker), info(user)
    if made.stage < used.stage:
        kind, fits = InputKind.RECEIVED_FORWARD, made.phase is Phase.FORWARD
    else:
        kind, fits = InputKind.RECEIVED_BACKWARD, used.phase is not Phase.FORWARD
    if not fits:
        raise BadPlan(
            f"stages: {made.key!r} of stage {made.stage}, {made.phase}, is used by "
            f"{used.key!r} of stage {used.stage}, {used.phase}; what is made forward "
            "goes to later stages, what is made backward to earlier ones"
        )
    return kind


def _homes(program: Program, num_stages: int) -> dict[fx.Node, tuple[int, ...]]:
    """Return the stages that each placeholder enters, its home first."""
    makers = {
        role.name: info(value_of(node).node).stage
        for node, role in program.results()
        if role.kind in (OutputKind.GRADIENT, OutputKind.MUTATED_BUFFER)
    }
    leaving = {node for node, _ in program.results()}
    found: dict[fx.Node, tuple[int, ...]] = {}
    for node, role in program.placeholders():
        stages = {info(user).stage for user in node.users if user.op != "output"}
        if node in leaving or not stages:
            stages |= {min(stages, default=0)}
        home = min(stages)
        if role.kind.is_state:
            home = makers.get(role.name, home)
        assert home < num_stages
        found[node] = (home, *sorted(stages - {home}))
    return found


class _Stage:
    """Builds the program of one stage."""

    def __init__(self, cutting: Cutting, stage: int) -> None:
        self.program = cutting.program
        self.stage = stage
        self.ways = cutting.ways
        self.homes = cutting.homes
        self.calls = cutting.calls[stage]
        self.graph = fx.Graph()
        self.copies: dict[fx.Node, fx.Node] = {}
        self.made: dict[Value, fx.Node] = {}
        self.received: dict[Value, fx.Node] = {}
        self.inputs: list[InputRole] = []
        self.constants: dict[str, torch.Tensor] = {}

    def build(self) -> Program:
        for node, role in self.program.placeholders():
            if self.stage in self.homes[node]:
                self._enter(node, role)
        for (value, stage), kind in self.ways.items():
            if stage == self.stage:
                self._receive(value, kind)
        for node in self.calls:
            self._copy(node)
        leaving = dict(self._leaving())
        self.graph.output(tuple(leaving.values()))
        in_time = self.program.in_time
        known = dict(zip(self.program.outputs, in_time.joins, strict=False))
        joins = [known.get(role, Broadcast()) for role in leaving if known]
        return replace(
            self.program,
            graph_module=uncompiled(torch.nn.Module(), self.graph),
            inputs=tuple(self.inputs),
            outputs=tuple(leaving),
            constants=self.constants,
            in_time=replace(in_time, joins=tuple(joins)),
        )

    def _leaving(self) -> Iterator[tuple[OutputRole, fx.Node]]:
        """Yield what leaves the model here, then what goes to other stages."""
        for node, role in self.program.results():
            if self._stage_of(node) == self.stage:
                yield role, self.copies[node]
        for (value, stage), kind in self.ways.items():
            if info(value.node).stage == self.stage:
                name = sent_name(str(_ref(value)), stage)
                yield OutputRole(_SENT[kind], name), self.made[value]

    def _stage_of(self, node: fx.Node) -> int:
        source = value_of(node).node
        if source.op == "placeholder":
            return self.homes[source][0]
        return info(source).stage

    def _enter(self, node: fx.Node, role: InputRole) -> None:
        copy = self.graph.node_copy(node)
        copy.meta = {}
        fact = info(node)
        if self.stage != self.homes[node][0]:
            fact = replace(fact, key=at_stage(fact.key, self.stage))
            if role.kind.is_state:
                role = InputRole(InputKind.SHARED, role.name)
        set_info(copy, replace(fact, stage=self.stage))
        if role.kind is InputKind.CONSTANT:
            self.constants[role.name] = self.program.constants[role.name]
        self.copies[node] = copy
        self.inputs.append(role)

    def _receive(self, value: Value, kind: InputKind) -> None:
        name = str(_ref(value))
        entering = self.graph.placeholder(f"received_{len(self.received)}")
        is_forward = kind is InputKind.RECEIVED_FORWARD
        fact = NodeInfo(
            key=at_stage(name, self.stage),
            phase=Phase.FORWARD if is_forward else Phase.BACKWARD_INPUT,
            types=(type_of(value),),
            module=info(value.node).module,
            source=info(value.node).source,
            stage=self.stage,
        )
        entering.meta = {}
        set_info(entering, fact)
        self.received[value] = entering
        self.inputs.append(InputRole(kind, name))

    def _copy(self, node: fx.Node) -> None:
        def own(leaf: fx.Node) -> fx.Node:
            return self.received.get(value_of(leaf)) or self.copies[leaf]

        copy = self.graph.node_copy(node, own)
        copy.meta = {}
        if node.target is not operator.getitem:
            set_info(copy, info(node))
        if node.target is operator.getitem or len(info(node).types) == 1:
            self.made[value_of(node)] = copy
        self.copies[node] = copy


def _ref(value: Value) -> Ref:
    return Ref(info(value.node).key, value.index)
