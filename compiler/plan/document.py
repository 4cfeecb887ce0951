"""The records of the plan document: what was decided for a model on a mesh.

A ``Document`` holds decisions and predictions, never tensors or code; ``Plan``
(plan.py) is one that loads, saves, prints and explains itself. Placements, types and
meshes are values here and their printed text in JSON (plan.schema.json), where a few
keys are no Python names and stand in the metadata of their fields.

Units: ``seconds`` and ``bytes`` of one step on one rank, ``flops`` of all together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple

import torch

from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import InputKind, OutputKind, Phase
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.signature import Signature
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.alternative import Alternative
from partita.compiler.plan.input_spec import InputSpec
from partita.compiler.plan.reported import DerivedRow, Reported
from partita.compiler.plan.search_result import SearchResult
from partita.compiler.plan.stage_records import (
    SEQUENTIAL,
    Schedule,
    Stage,
    Transfer,
)

VERSION = 1
"""The version of the document's form; a change that old readers misread raises it."""

_INDEXED = re.compile(r"(.+)#(\d+)", re.DOTALL)


def _key(name: str) -> dict[str, str]:
    return {"json": name}


class Ref(NamedTuple):
    """A tensor: the key of the node that makes it and which of its results it is.

    >>> str(Ref("h.0/mm/0")), str(Ref("ln/native_layer_norm/0", 2))
    ('h.0/mm/0', 'ln/native_layer_norm/0#2')
    >>> Ref.parse("odd#1#0") == Ref("odd#1"), str(Ref("odd#1"))
    (True, 'odd#1#0')
    """

    key: str
    index: int = 0  # type: ignore[assignment]  # no one counts values in a reference

    def __str__(self) -> str:
        is_plain = "#" not in self.key or not _INDEXED.fullmatch(self.key)
        if self.index == 0 and is_plain:
            return self.key
        return f"{self.key}#{self.index}"

    @classmethod
    def parse(cls, text: str) -> Ref:
        """Read ``key`` or ``key#index``, the form that ``str`` prints."""
        match = _INDEXED.fullmatch(text)
        return cls(match[1], int(match[2])) if match else cls(text)


class LossKind(StrEnum):
    """Where the scalar that is differentiated comes from."""

    OUTPUT = "output"
    ATTRIBUTE = "attribute"
    CALLABLE = "callable"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class ModelId:
    """Which model the plan is for; ``fingerprint`` knows neither device nor torch."""

    class_name: str = field(metadata=_key("class"))
    fingerprint: str


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What the plan was asked for, as far as applying it needs to know.

    ``loss_name`` is the attribute, or ``module:function`` of the callable;
    ``precision`` that of mixed precision; with ``fuse`` a kernel may be of several ops.
    """

    loss: LossKind = LossKind.OUTPUT
    loss_name: str = ""
    train: bool = True
    optimizer: str = "adamw"
    memory_bytes: int | None = None
    pins: Mapping[str, str] = field(default_factory=dict[str, str])
    precision: str | None = None
    fuse: bool = False


@dataclass(frozen=True, slots=True)
class ParameterPlacements:
    """The four placements of a parameter (DESIGN, decision 11).

    ``use`` is that of its first consumer, other uses stand in ``boxings``; ``storage``
    that in which the step receives it. The gradient passes ``gradient`` on its way to
    ``optimizer``, that of ``.grad``, of the optimizer's state and of the parameter that
    is trained; both are ``None`` where nothing is.
    """

    use: Placement
    storage: Placement
    gradient: Placement | None = None
    optimizer: Placement | None = None


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter: logical shape, placements, the names it is tied to, its stages."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    placements: ParameterPlacements
    aliases: tuple[str, ...] = ()
    homes: tuple[int, ...] = (0,)

    @property
    def type(self) -> TensorType:
        """The logical type."""
        return TensorType(self.shape, self.dtype)


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer; ``mutated`` when the step writes it back."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    placement: Placement
    aliases: tuple[str, ...] = ()
    mutated: bool = False

    @property
    def type(self) -> TensorType:
        """The logical type."""
        return TensorType(self.shape, self.dtype)


@dataclass(frozen=True, slots=True)
class Role:
    """What a node that computes nothing stands for."""

    kind: InputKind
    name: str


@dataclass(frozen=True, slots=True)
class Node:
    """A call of the joint graph, or with a ``role`` something that enters it.

    Attributes:
        op: ``aten.mm.default``; ``placeholder`` with a role.
        operands: the tensors it uses, one per operand of its signature.
        types: logical, one per result, ``None`` for a result that is no tensor.
        signature: the chosen placements, one per operand and result.
        constants: its other arguments, printed, e.g. ``dim=1``; for people only.
        seconds: predicted, under the chosen signature.
        ways: into how many different parts the ranks split its work; 1 where each
            does all of it.
        alternatives: cheapest first.
    """

    op: str
    types: tuple[TensorType | None, ...]
    signature: Signature
    operands: tuple[Ref, ...] = ()
    constants: tuple[str, ...] = ()
    stage: int = 0
    phase: Phase = Phase.FORWARD
    module: str = ""
    source: str = ""
    role: Role | None = None
    seconds: float = 0.0
    flops: float = 0.0
    ways: int = 1
    alternatives: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class Expanded:
    """An op of the model that is taken apart, because its split asks for it.

    ``nodes`` are the keys of its parts; ``signature`` and ``alternatives`` are those of
    the whole op.
    """

    op: str
    signature: Signature
    nodes: tuple[str, ...]
    alternatives: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class LoweringStep:
    """One step of a boxing: it changes the placement on one axis.

    ``kind`` is ``all_reduce``, ``slice`` and the like (compiler/cost); ``after`` the
    placement once it is done; ``payload`` the bytes that one rank hands to the
    collective each time, ``bytes`` those that it puts on the wire in a step.
    """

    kind: str
    axis: str
    after: Placement = field(metadata=_key("to"))
    payload: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind} {self.axis}"


@dataclass(frozen=True, slots=True)
class Boxing:
    """A change of placement of one tensor, shared by all who want it so.

    ``consumers`` are node keys, or printed outputs (``gradient:h.0.weight``). What
    follows from ``lowering`` (``derived``) is written too, for readers of the JSON.
    """

    derived: ClassVar[tuple[str, ...]] = ("axis", "bytes", "seconds")

    key: str
    producer: str
    source: Placement = field(metadata=_key("from"))
    target: Placement = field(metadata=_key("to"))
    lowering: tuple[LoweringStep, ...]
    consumers: tuple[str, ...]
    index: int = 0
    why: str = ""

    @property
    def ref(self) -> Ref:
        """The tensor that is boxed."""
        return Ref(self.producer, self.index)

    @property
    def enters(self) -> bool:
        """Whether it brings its producer, a parameter, from optimizer to storage."""
        return self.consumers == (self.producer,)

    @property
    def axis(self) -> tuple[str, ...]:
        """The mesh axes it works on, in the order of its steps."""
        return tuple(dict.fromkeys(step.axis for step in self.lowering))

    @property
    def bytes(self) -> int:
        """What one rank puts on the wire."""
        return sum(step.bytes for step in self.lowering)

    @property
    def seconds(self) -> float:
        """The predicted time of all its steps, as often as a step makes them."""
        return sum(step.seconds for step in self.lowering)


def boxing_key(producer: str, index: int, target: Placement) -> str:
    """Return the key of the boxing of a node's result to ``target``."""
    return f"{producer}#{index} -> {target}"


@dataclass(frozen=True, slots=True)
class Output:
    """A value that leaves the graph, and how; ``None`` where there is no such tensor.

    Prints as boxings name it among their consumers.

    >>> str(Output(OutputKind.GRADIENT, "h.0.weight", None, None))
    'gradient:h.0.weight'
    """

    kind: OutputKind
    name: str
    value: Ref | None
    placement: Placement | None

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


@dataclass(frozen=True, slots=True)
class CollectiveTotal:
    """How many collectives of one kind run along one axis, and their payloads."""

    kind: str
    axis: str
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Predicted:
    """Time and peak memory of one step; the parts by name, e.g. ``compute``.

    ``hidden_by_part`` are the seconds of messages that pass while ranks compute; they
    are not among the others.
    """

    seconds: float
    bytes: int
    seconds_by_part: Mapping[str, float] = field(default_factory=dict[str, float])
    bytes_by_part: Mapping[str, int] = field(default_factory=dict[str, int])
    hidden_by_part: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The whole plan.

    Attributes:
        partita: the version of Partita that wrote it.
        version: that of the document's form.
        mesh: the default mesh; each stage names its own.
        hardware: the profile, whole, as compiler/hardware writes it.
        nodes: by key, inputs of the graph included.
        expanded: the ops of the model whose parts stand among the nodes, by key.
        microbatches: into how many parts a step cuts the batch. Nodes, types and
            boxings are those of one part.
        transfers: what goes from stage to stage.
        recompute: calls of the forward and boxings that are made again for backward,
            by key; ``nodes`` and ``boxings`` hold both, the second as ``again_key``.
        fusion: groups of node keys that become one kernel.
        joined: groups of products of one tensor that become one product.
        buckets: groups of boxings, by key, that send what they send in one buffer.
        ahead: boxings whose message starts before they are needed, of a bucket its
            first, and the call or boxing right before which it does.
        late: those whose message is waited for behind where it starts, and before what.
        order: every node key, in the order of the program.
        derived_rules: rows for ops that the rule table lacks.
    """

    partita: str
    version: int = VERSION
    model: ModelId
    mesh: Mesh
    stages: tuple[Stage, ...]
    hardware: Mapping[str, Any]
    inputs: InputSpec
    options: PlanOptions
    parameters: Mapping[str, Parameter]
    buffers: Mapping[str, Buffer]
    nodes: Mapping[str, Node]
    expanded: Mapping[str, Expanded] = field(default_factory=dict[str, Expanded])
    boxings: tuple[Boxing, ...]
    schedule: Schedule = SEQUENTIAL
    microbatches: int = 1
    transfers: tuple[Transfer, ...] = ()
    recompute: tuple[str, ...] = ()
    fusion: tuple[tuple[str, ...], ...] = ()
    joined: tuple[tuple[str, ...], ...] = ()
    buckets: tuple[tuple[str, ...], ...] = ()
    ahead: Mapping[str, str] = field(default_factory=dict[str, str])
    late: Mapping[str, str] = field(default_factory=dict[str, str])
    order: tuple[str, ...]
    outputs: tuple[Output, ...]
    collectives: tuple[CollectiveTotal, ...]
    predicted: Predicted
    search: SearchResult
    reported: tuple[Reported, ...] = ()
    derived_rules: tuple[DerivedRow, ...] = ()

    @property
    def split_fraction(self) -> float:
        """The part of all flops that is split over every rank of their stage.

        1.0 where there are none.
        """
        total = sum(node.flops for node in self.nodes.values())
        split = sum(
            node.flops
            for node in self.nodes.values()
            if node.ways == self.stages[node.stage].mesh.size
        )
        return split / total if total else 1.0

    @property
    def replicated_fraction(self) -> float:
        """The part of the compute time of ops that some axis of the mesh repeats."""
        calls = [node for node in self.nodes.values() if node.role is None]
        total = sum(node.seconds for node in calls)
        sizes = [stage.mesh.size for stage in self.stages]
        repeated = sum(n.seconds for n in calls if n.ways < sizes[n.stage])
        return repeated / total if total else 0.0
