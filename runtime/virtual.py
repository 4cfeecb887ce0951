"""Run every rank's program in this one process, without ``torch.distributed``.

Each rank is a generator that interprets its own graph, so programs may differ in
structure. A collective is posted and the rank runs on; it stops where it waits for
the result until all members of the group have posted theirs. The k-th call of one
member meets the k-th call of every other, as a process group orders them.

Values are shared between ranks where they are equal, so programs must not write in
place: that is checked before anything runs. A value is freed after its last use.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import fx
from torch.fx.node import map_arg

from partita.compiler.capture.schemas import writes_in_place
from partita.compiler.errors import InvariantViolation
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.on_device import on_device
from partita.compiler.ir.program import has_info, info, op_name
from partita.runtime.collectives import (
    Call,
    complete,
    disagreement,
    is_collective,
    is_wait,
    read_call,
)
from partita.runtime.feeds import Feeds, arguments, own_feeds

Outputs = tuple[torch.Tensor | None, ...]
Observer = Callable[[int, fx.Node, Any], None]


def run_all(
    programs: Sequence[LocalProgram],
    feeds: Sequence[Feeds],
    stages: Sequence[int] | None = None,
    device: torch.device | None = None,
    observe: Observer | None = None,
) -> list[Outputs]:
    """Run the programs, by rank, on their feeds; return each rank's outputs.

    ``stages[i]`` is the pipeline stage of program i, 0 unless given: a group
    ``stage<n>/<axis>`` joins the ranks of stage n that differ only along the axis.
    Coordinates, constants and the loss scale need no feeding. With a ``device``, ops
    that make tensors make them there. ``observe(rank, node, value)`` is told what every
    node computes.

    Raises:
        InvariantViolation: when ranks disagree about a collective, or wait for calls
            that nobody makes.
    """
    lockstep = _Lockstep(programs, stages or [0] * len(programs), observe)
    runs: list[_Run] = []
    modules = {program.graph_module: program.graph_module for program in programs}
    if device is not None and device != torch.get_default_device():
        modules = {module: on_device(module, device) for module in modules}
    for rank, (program, fed) in enumerate(zip(programs, feeds, strict=True)):
        module, own = modules[program.graph_module], own_feeds(program, device)
        runs.append(lockstep.interpret(rank, module, arguments(program, fed, own)))
    return lockstep.drive(runs)


@dataclass(slots=True)
class _Ticket:
    """A posted collective: the call, until it is complete, then the result."""

    rank: int
    node: fx.Node
    call: Call | None
    result: torch.Tensor | None = None

    def __str__(self) -> str:
        return f"rank {self.rank} calls {self.call} at {_key(self.node)!r}"


@dataclass(frozen=True, slots=True)
class _Turn:
    """What is done at one node: whether it meets other ranks, what is let go after."""

    node: fx.Node
    is_collective: bool
    is_wait: bool
    dead: tuple[fx.Node, ...]


_Group = tuple[str, tuple[int, ...]]
_Run = Generator[_Ticket, None, Outputs]


@dataclass
class _Lockstep:
    programs: Sequence[LocalProgram]
    stages: Sequence[int]
    observe: Observer | None
    queues: dict[_Group, dict[int, deque[_Ticket]]] = field(
        default_factory=dict[_Group, dict[int, deque[_Ticket]]]
    )
    turns: dict[fx.Graph, tuple[_Turn, ...]] = field(
        default_factory=dict[fx.Graph, tuple[_Turn, ...]]
    )
    members: dict[tuple[int, str], tuple[int, ...]] = field(
        default_factory=dict[tuple[int, str], tuple[int, ...]]
    )

    def drive(self, runs: list[_Run]) -> list[Outputs]:
        """Advance every rank as far as it goes, over and over, until all are done."""
        outputs: dict[int, Outputs] = {}
        waiting: dict[int, _Ticket | None] = dict.fromkeys(range(len(runs)))
        while waiting:
            ready = [r for r, t in waiting.items() if t is None or t.result is not None]
            if not ready:
                raise InvariantViolation(self._deadlock(waiting))
            for rank in ready:
                try:
                    waiting[rank] = next(runs[rank])
                except StopIteration as stop:
                    outputs[rank] = stop.value
                    del waiting[rank]
        for group, queues in self.queues.items():
            for queue in queues.values():
                if queue:
                    raise InvariantViolation(self._left_alone(queue[0], group))
        return [outputs[rank] for rank in range(len(runs))]

    def interpret(self, rank: int, module: torch.nn.Module, values: list[Any]) -> _Run:
        """Run one rank's graph node by node; yield where it has to wait."""
        assert isinstance(module, fx.GraphModule)
        if module.graph not in self.turns:
            self.turns[module.graph] = _turns(module.graph)
        env: dict[fx.Node, Any] = {}
        values.reverse()
        for turn in self.turns[module.graph]:
            node = turn.node
            if node.op == "placeholder":
                env[node] = values.pop()
            elif node.op == "get_attr":
                env[node] = _attribute(module, str(node.target))
            elif node.op == "call_module":
                region = module.get_submodule(str(node.target))
                given = list(_evaluated(node, node.args, env))
                env[node] = yield from self.interpret(rank, region, given)
            elif node.op == "output":
                return cast(Outputs, tuple(_evaluated(node, node.args[0], env)))
            elif turn.is_wait:
                (started,) = node.all_input_nodes
                ticket = env[started]
                if isinstance(ticket, _Ticket):
                    while ticket.result is None:
                        yield ticket
                    env[node] = ticket.result
                else:
                    env[node] = ticket
                del ticket
            elif turn.is_collective:
                assert not node.kwargs
                call = read_call(node, _evaluated(node, node.args, env))
                env[node] = self._post(rank, node, call)
            else:
                env[node] = self._call(rank, node, env)
            if self.observe is not None and not isinstance(env[node], _Ticket):
                self.observe(rank, node, env[node])
            for dead in turn.dead:
                del env[dead]
        raise AssertionError("a graph has an output node")

    def _call(self, rank: int, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
        args = _evaluated(node, node.args, env)
        kwargs = _evaluated(node, node.kwargs, env) if node.kwargs else {}
        assert callable(node.target)
        try:
            return node.target(*args, **kwargs)
        except Exception as error:
            error.add_note(f"on rank {rank}, at {_key(node)!r}: {node.format_node()}")
            raise

    def _post(self, rank: int, node: fx.Node, call: Call) -> _Ticket:
        asked = rank, call.group
        if asked not in self.members:
            self.members[asked] = self._members(rank, call.group)
        members = self.members[asked]
        group = (call.group, members)
        queues = self.queues.setdefault(group, {member: deque() for member in members})
        ticket = _Ticket(rank, node, call)
        queues[rank].append(ticket)
        if all(queues.values()):
            self._complete(call.group, [queue.popleft() for queue in queues.values()])
        return ticket

    def _complete(self, name: str, tickets: list[_Ticket]) -> None:
        calls = [ticket.call for ticket in tickets if ticket.call]
        wrong = disagreement(calls)
        if wrong:
            raise InvariantViolation(
                f"collectives over {name} do not match, {wrong}: "
                + "; ".join(str(ticket) for ticket in tickets)
            )
        for ticket, result in zip(tickets, complete(calls), strict=True):
            ticket.result, ticket.call = result, None

    def _members(self, rank: int, group: str) -> tuple[int, ...]:
        """Return the ranks of the stage that differ from ``rank`` along the axis."""
        stage, _, axis_name = group.partition("/")
        mesh, coordinates = self.programs[rank].mesh, self.programs[rank].coordinates
        assert stage == f"stage{self.stages[rank]}", f"rank {rank} is not of {stage}"
        axis = mesh.axis(axis_name)
        found = {
            other.coordinates[axis]: number
            for number, other in enumerate(self.programs)
            if self.stages[number] == self.stages[rank]
            and other.coordinates[:axis] == coordinates[:axis]
            and other.coordinates[axis + 1 :] == coordinates[axis + 1 :]
        }
        assert len(found) == mesh.sizes[axis], f"{group}: some ranks have no program"
        return tuple(found[coordinate] for coordinate in sorted(found))

    def _deadlock(self, waiting: dict[int, _Ticket | None]) -> str:
        lines = [f"{ticket} and waits" for ticket in waiting.values() if ticket]
        for group, queues in self.queues.items():
            if any(queues.values()) and not all(queues.values()):
                missing = ", ".join(str(r) for r, queue in queues.items() if not queue)
                lines.append(f"over {group[0]} no call has come from rank {missing}")
        return f"deadlock: {'; '.join(lines)}"

    def _left_alone(self, ticket: _Ticket, group: _Group) -> str:
        others = ", ".join(str(r) for r in group[1] if not self.queues[group][r])
        return f"{ticket} over {group[0]}, but rank {others} never does"


def _key(node: fx.Node) -> str:
    return info(node).key if has_info(node) else node.name


def _check_functional(graph: fx.Graph) -> None:
    for node in graph.nodes:
        if writes_in_place(node.target) and not _is_in_own_buffer(node):
            raise InvariantViolation(
                f"{_key(node)!r} calls {op_name(node)}, which writes in place; run_all "
                "shares values between ranks and takes functional programs only"
            )


def _is_in_own_buffer(node: fx.Node) -> bool:
    """Whether a collective writes to what nobody else reads: it may as well not."""
    if not is_collective(node):
        return False
    (buffer,) = node.all_input_nodes
    return buffer.op == "call_function" and list(buffer.users) == [node]


def _attribute(module: torch.nn.Module, path: str) -> Any:
    value: Any = module
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _evaluated(node: fx.Node, tree: Any, env: dict[fx.Node, Any]) -> Any:
    """Return ``tree`` with nodes replaced by values."""

    def look_up(leaf: fx.Node) -> Any:
        value = env[leaf]
        if isinstance(value, _Ticket):
            raise InvariantViolation(
                f"{_key(node)!r} uses the result of {_key(leaf)!r} without a wait"
            )
        return value

    return map_arg(tree, look_up)


def _turns(graph: fx.Graph) -> tuple[_Turn, ...]:
    """Return what every rank that runs ``graph`` does at its nodes."""
    _check_functional(graph)
    last_users = _last_users(graph)
    return tuple(
        _Turn(node, is_collective(node), is_wait(node), tuple(last_users.get(node, ())))
        for node in graph.nodes
    )


def _last_users(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """Return, per node, the nodes whose values nobody needs after it."""
    last: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        last[node] = node
        for operand in node.all_input_nodes:
            last[operand] = node
    users: dict[fx.Node, list[fx.Node]] = {}
    for node, user in last.items():
        if user.op != "output":
            users.setdefault(user, []).append(node)
    return users
