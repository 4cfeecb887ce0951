"""The program: one joint fx graph and the roles of what enters and leaves it.

This is the only file that touches ``node.meta``. What Partita knows of a node is
one frozen ``NodeInfo`` under one key. A node with several results is followed by
``operator.getitem`` nodes, which choose among the results and decide nothing.

Shapes in ``NodeInfo.types`` are logical (global) until the localize pass, and those
of one rank's shards after it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple, cast

import torch
from torch import fx
from torch.fx.node import map_arg

from partita.compiler.capture.torch_private import uncompiled
from partita.compiler.ir.in_time import WHOLE, InTime
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.signature import Signature
from partita.compiler.ir.tensor_type import TensorType

_META = "partita"
_PLAIN = int, float, str, type(None)  # most arguments: looked at first
_SEQUENCES = tuple, list


class Phase(StrEnum):
    """When a node runs: the forward, either half of the backward, or the update."""

    FORWARD = "forward"
    BACKWARD_INPUT = "backward-input"
    BACKWARD_WEIGHT = "backward-weight"
    UPDATE = "update"


class InputKind(StrEnum):
    """What a placeholder stands for."""

    __hash__ = str.__hash__  # in C; that of enums, in Python, takes some times as long

    PARAMETER = "parameter"
    BUFFER = "buffer"
    INPUT = "input"
    CONSTANT = "constant"
    LOSS_SCALE = "loss-scale"
    SEED = "seed"
    COORDINATE = "coordinate"
    MICROBATCH = "microbatch"
    ACCUMULATED = "accumulated"
    RECEIVED_FORWARD = "received-forward"
    RECEIVED_BACKWARD = "received-backward"
    SHARED = "shared"
    SAVED = "saved"
    JOINED = "joined"

    @property
    def is_state(self) -> bool:
        """Whether it stays from step to step, here."""
        return self in (InputKind.PARAMETER, InputKind.BUFFER)

    @property
    def is_received(self) -> bool:
        """Whether another stage makes it, for every microbatch."""
        return self in (InputKind.RECEIVED_FORWARD, InputKind.RECEIVED_BACKWARD)


class OutputKind(StrEnum):
    """What a value that leaves the graph stands for."""

    __hash__ = str.__hash__  # see InputKind

    LOSS = "loss"
    OUTPUT = "output"
    GRADIENT = "gradient"
    MUTATED_BUFFER = "mutated-buffer"
    SENT_FORWARD = "sent-forward"
    SENT_BACKWARD = "sent-backward"
    SHARED_GRADIENT = "shared-gradient"
    SAVED = "saved"

    @property
    def is_kept(self) -> bool:
        """Whether it is there while the optimizer steps."""
        return self in (OutputKind.GRADIENT, OutputKind.LOSS)

    @property
    def adds_up(self) -> bool:
        """Whether what the microbatches make of it is added before it leaves."""
        return self is OutputKind.LOSS or self.is_gradient

    @property
    def is_gradient(self) -> bool:
        """Whether it is a gradient of a parameter, or a stage's part of one."""
        return self in (OutputKind.GRADIENT, OutputKind.SHARED_GRADIENT)

    @property
    def is_of_training(self) -> bool:
        """Whether only a backward makes it."""
        return self.is_gradient or self is OutputKind.SENT_BACKWARD

    @property
    def is_sent(self) -> bool:
        """Whether another stage takes it, for every microbatch."""
        return self in (OutputKind.SENT_FORWARD, OutputKind.SENT_BACKWARD)


@dataclass(frozen=True, slots=True)
class InputRole:
    """The role of one placeholder.

    ``name`` is the model's own: ``h.0.attn.weight`` for a parameter or buffer,
    ``input_ids`` or ``args.0`` for an input (nested: ``batch.images.1``), the axis
    for a coordinate, which is an int; the time axis for the number of a microbatch,
    which is a tensor; the printed output that accumulated values are of; the printed
    tensor that another stage sends or the forward saves; the parameter or buffer that
    is shared by a stage that has it; the names of parameters that lie side by side,
    with `` + `` between them. ``aliases`` are the other names of a tied
    parameter.
    """

    kind: InputKind
    name: str
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OutputRole:
    """The role of one value in the graph's output tuple; named as in ``InputRole``.

    >>> str(OutputRole(OutputKind.GRADIENT, "h.0.weight"))
    'gradient:h.0.weight'
    """

    kind: OutputKind
    name: str

    def __hash__(self) -> int:
        """Return the hash of the name, which it has ready; few roles share one."""
        return hash(self.name)

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """What Partita knows of a node.

    Attributes:
        key: stable across captures: module path, op, ordinal (DESIGN, decision 4).
        phase: when it runs.
        types: one per result, ``None`` for a result that is no tensor.
        module: path of the module that called the op, "" for the root.
        source: ``file.py:line`` of the user's code that caused it.
        signature: the placements it works on, once they are decided.
        stage: the pipeline stage it runs on.
    """

    key: str
    phase: Phase
    types: tuple[TensorType | None, ...]
    module: str = ""
    source: str = ""
    signature: Signature | None = None
    stage: int = 0


class Value(NamedTuple):
    """A tensor in a program: the node that makes it and which of its results."""

    node: fx.Node
    index: int  # type: ignore[assignment]  # no one counts values in a value


@dataclass(frozen=True)
class Program:
    """A graph, the roles of its placeholders and outputs, and its mesh.

    ``inputs[i]`` is the role of the i-th placeholder, ``outputs[i]`` that of the
    i-th entry of the output node's one tuple. ``constants`` are the tensors that the
    model's code made out of nothing, by placeholder name. ``draws`` are the keys of the
    ops that drew random numbers, in the order in which the model calls them.
    ``in_time`` says how runs on parts of the batch make up a step.
    """

    graph_module: fx.GraphModule
    inputs: tuple[InputRole, ...]
    outputs: tuple[OutputRole, ...]
    mesh: Mesh | None = None
    constants: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    draws: tuple[str, ...] = ()
    in_time: InTime = WHOLE

    @property
    def graph(self) -> fx.Graph:
        """The fx graph."""
        return self.graph_module.graph

    def placeholders(self) -> list[tuple[fx.Node, InputRole]]:
        """Return the placeholders with their roles, in order."""
        return list(
            zip(self.graph.find_nodes(op="placeholder"), self.inputs, strict=True)
        )

    def results(self) -> list[tuple[fx.Node, OutputRole]]:
        """Return the nodes that leave the graph with their roles, in order."""
        (output,) = self.graph.find_nodes(op="output")
        return list(zip(output.args[0], self.outputs, strict=True))

    @property
    def returns_outputs(self) -> bool:
        """Whether a step hands the model's outputs over: none does that trains."""
        return not any(role.kind.is_of_training for role in self.outputs)

    @property
    def trained(self) -> frozenset[str]:
        """The names of the parameters that have a gradient."""
        kind = OutputKind.GRADIENT
        return frozenset(role.name for role in self.outputs if role.kind is kind)

    @property
    def changed(self) -> frozenset[str]:
        """The names of the parameters and buffers that a step of training changes."""
        kinds = OutputKind.GRADIENT, OutputKind.MUTATED_BUFFER
        return frozenset(role.name for role in self.outputs if role.kind in kinds)

    def nodes(self) -> Iterator[fx.Node]:
        """Yield placeholders and calls in order; neither getitem nor the output."""
        for node in self.graph.nodes:
            if node.op != "output" and node.target is not operator.getitem:
                yield node

    def calls(self) -> Iterator[fx.Node]:
        """Yield the nodes that compute, in order; getitem nodes are not among them."""
        for node in self.nodes():
            if node.op == "call_function":
                yield node

    def with_mesh(self, mesh: Mesh) -> Program:
        """Return this program on ``mesh``."""
        return replace(self, mesh=mesh)

    def copy(self) -> Program:
        """Return a program with a graph of its own; nodes keep names and infos."""
        graph = fx.Graph()
        values: dict[fx.Node, fx.Node] = {}
        output = graph.graph_copy(self.graph, val_map=values)
        graph.output(output)
        module = uncompiled(self.graph_module, graph)
        return replace(self, graph_module=module)


def info(node: fx.Node) -> NodeInfo:
    """Return what Partita knows of ``node``."""
    return node.meta[_META]


def has_info(node: fx.Node) -> bool:
    """Whether ``node`` carries a ``NodeInfo`` yet."""
    return _META in node.meta


def set_info(node: fx.Node, value: NodeInfo) -> None:
    """Write what Partita knows of ``node``, in place of what it knew."""
    node.meta[_META] = value


def update_info(node: fx.Node, **changes: Any) -> None:
    """Change some fields of what Partita knows of ``node``."""
    set_info(node, replace(info(node), **changes))


def op_name(node: fx.Node) -> str:
    """Return ``aten.mm.default`` and the like; ``placeholder`` for an input."""
    return node.op if node.op != "call_function" else str(node.target)


def value_of(node: fx.Node) -> Value:
    """Return the value that an argument node stands for, getitem looked through."""
    if node.target is operator.getitem:
        source, index = node.args
        assert isinstance(source, fx.Node)
        assert isinstance(index, int)
        return Value(source, index)
    return Value(node, 0)


def operand_nodes(node: fx.Node) -> list[fx.Node]:
    """Return the argument nodes in the order of ``(args, kwargs)``, repeats kept."""
    found: list[fx.Node] = []
    _collect(node.args, found)
    if node.kwargs:
        _collect(tuple(node.kwargs.values()), found)
    return found


def _collect(values: Sequence[object], found: list[fx.Node]) -> None:
    """Note the nodes in arguments, as torch's map_arg does, which makes all anew."""
    for value in values:
        if isinstance(value, fx.Node):
            found.append(value)
        elif isinstance(value, _PLAIN):
            continue
        elif isinstance(value, _SEQUENCES):
            _collect(cast("Sequence[object]", value), found)
        elif isinstance(value, dict):
            _collect(tuple(cast("dict[str, object]", value).values()), found)
        elif isinstance(value, slice):
            _collect((value.start, value.stop, value.step), found)


def operands(node: fx.Node) -> list[Value]:
    """Return the values that ``node`` uses, in the order of ``operand_nodes``."""
    return [value_of(leaf) for leaf in operand_nodes(node)]


def type_of(value: Value) -> TensorType:
    """Return the type of ``value``."""
    result = info(value.node).types[value.index]
    assert result is not None, f"{value.node} has no tensor at {value.index}"
    return result


def is_short_copy(node: fx.Node) -> bool:
    """Whether ``node`` makes a copy of its only operand in fewer bits."""
    (made, *others), used = info(node).types or (None,), operands(node)
    if made is None or others or len(used) != 1:
        return False
    return made.is_short(type_of(used[0]))


def placement_of(value: Value) -> Placement:
    """Return the placement in which ``value`` is made."""
    signature = info(value.node).signature
    assert signature is not None, f"{value.node} has no signature yet"
    placement = signature.results[value.index]
    assert placement is not None
    return placement


def map_operands(node: fx.Node, rewrite: Callable[[int, fx.Node], fx.Node]) -> None:
    """Replace the i-th operand node by ``rewrite(i, operand)``, in place."""
    position = -1

    def visit(leaf: fx.Node) -> fx.Node:
        nonlocal position
        position += 1
        return rewrite(position, leaf)

    args, kwargs = map_arg((node.args, node.kwargs), visit)
    node.args, node.kwargs = args, kwargs
