"""What must hold of the programs that ranks run, checked before any of them runs.

Both checks run a program on meta tensors: shapes and dtypes without values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

import torch
from torch import fx

from partita.compiler.capture.torch_private import FakeMode
from partita.compiler.errors import InvariantViolation
from partita.compiler.ir.layout import shard_shape
from partita.compiler.ir.local_program import Closing, LocalProgram
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.on_device import arguments_on
from partita.compiler.ir.program import InputKind, has_info, info, op_name
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.shaped import Shaped, result_of, shaped

_COLLECTIVES = "_c10d_functional."
_WAIT = "_c10d_functional.wait_tensor.default"
_META, _CPU = torch.device("meta"), torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Issued:
    """A collective that a rank will call: what the other ranks of its group must too.

    ``constants`` are the arguments that are no tensors, the group's name the last.
    """

    key: str
    op: str
    payload: TensorType
    constants: tuple[object, ...]

    @property
    def group(self) -> str:
        """The symbolic name of the group."""
        return str(self.constants[-1])

    def __str__(self) -> str:
        return f"{self.op} of {self.payload} at {self.key!r}"


def local(program: LocalProgram) -> tuple[Issued, ...]:
    """Check that every node makes what its placement says; return its collectives.

    * the local shape and dtype of each result follow from logical type and placement
    * outputs have the shapes of their shards

    Raises:
        InvariantViolation: naming the first node that makes anything else.
    """
    try:
        return _Propagation(program, _META).run()
    except InvariantViolation:
        # Some kernels have results of other sizes there; fakes take several times
        # as long and tell what the device's own would make.
        with FakeMode():
            return _Propagation(program, _CPU).run()


class _Propagation:
    def __init__(self, program: LocalProgram, device: torch.device) -> None:
        self.program = program
        self.device = device
        self.issued: list[Issued] = []

    def run(self) -> tuple[Issued, ...]:
        self._check_outputs(self._results(self.program.graph_module, self._feeds()))
        return tuple(self.issued)

    def _results(self, module: fx.GraphModule, feeds: Sequence[Any]) -> tuple[Any, ...]:
        """Return what leaves ``module``, the program's or that of a fused region."""
        entering = iter(feeds)
        values: dict[fx.Node, Any] = {}
        for node in module.graph.nodes:
            args, kwargs = arguments_on(node, self.device, values.__getitem__)
            match node.op:
                case "placeholder":
                    values[node] = next(entering)
                case "call_function":
                    values[node] = self._call(node, args, kwargs)
                case "call_module":
                    region = module.get_submodule(str(node.target))
                    assert isinstance(region, fx.GraphModule)
                    values[node] = self._results(region, args)
                    self._check_types(node, values[node])
                case "output":
                    return cast("tuple[Any, ...]", args[0])
                case _:
                    raise InvariantViolation(f"{node.op} {node.name} has no place here")
        raise AssertionError("a graph has an output node")

    def _feeds(self) -> list[Any]:
        mesh, here = self.program.mesh, self.program.coordinates
        found: list[Any] = []
        inputs = zip(
            self.program.inputs,
            self.program.input_types,
            self.program.input_placements,
            strict=True,
        )
        for role, type_, placement in inputs:
            if role.kind is InputKind.COORDINATE:
                found.append(here[mesh.axis(role.name)])
            else:
                assert type_ is not None
                assert placement is not None
                shape = shard_shape(type_.shape, placement, mesh, here)
                x = torch.empty(shape, dtype=type_.dtype, device=_META)
                found.append(shaped(x))
        return found

    def _call(
        self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        target: Any = node.target
        try:
            made = result_of(target, args, kwargs, self.device)
        except Exception as error:
            raise InvariantViolation(
                f"{_where(node)}: {op_name(node)} does not take these shards: "
                f"{str(error).splitlines()[0] if str(error) else type(error).__name__}"
            ) from error
        if is_collective(node):
            payload = TensorType(args[0].shape, args[0].dtype)
            constants = tuple(_frozen(arg) for arg in args[1:])
            self.issued.append(Issued(_key(node), op_name(node), payload, constants))
        self._check_types(node, made)
        return made

    def _check_types(self, node: fx.Node, made: Any) -> None:
        types = info(node).types if has_info(node) else ()
        if not types:
            return
        results: list[Any] = list(made) if type(made) is tuple else [made]
        for wanted, found in zip(types, results, strict=True):
            if isinstance(found, Shaped) and wanted is not None:
                if (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
                    raise InvariantViolation(
                        f"{_where(node)}: {op_name(node)} makes "
                        f"{TensorType(found.shape, found.dtype)}, its placement says "
                        f"{wanted}"
                    )

    def _check_outputs(self, values: tuple[Any, ...]) -> None:
        mesh, here = self.program.mesh, self.program.coordinates
        outputs = zip(
            values,
            self.program.outputs,
            self.program.output_types,
            self.program.output_placements,
            strict=True,
        )
        for value, role, type_, placement in outputs:
            if type_ is not None and placement is not None:
                shape = shard_shape(type_.shape, placement, mesh, here)
                if value.shape != shape:
                    raise InvariantViolation(
                        f"{role.kind} {role.name} leaves as {list(value.shape)}, its "
                        f"placement says {list(shape)}"
                    )


def local_of_all(programs: Sequence[LocalProgram]) -> list[tuple[Issued, ...]]:
    """Check ``local`` for every rank; ranks that share a graph are checked once."""
    checked: dict[object, tuple[Issued, ...]] = {}
    found: list[tuple[Issued, ...]] = []
    for program in programs:
        shapes = tuple(
            shard_shape(type_.shape, placement, program.mesh, program.coordinates)
            for type_, placement in zip(
                program.input_types, program.input_placements, strict=True
            )
            if type_ is not None and placement is not None
        )
        same = (program.graph_module, shapes)
        if same not in checked:
            checked[same] = local(program)
        found.append(checked[same])
    return found


def digest(issued: Sequence[Issued]) -> dict[str, str]:
    """Return, per group, a hash of what its other ranks must call as well."""
    hashes: dict[str, Any] = {}
    for call in issued:
        line = f"{call.op} {call.payload.dtype}"
        if "all_to_all" not in call.op:
            line += f" {call.payload} {call.constants}"
        known = hashes.setdefault(call.group, hashlib.sha256())
        known.update(f"{line}\n".encode())
    return {group: known.hexdigest() for group, known in hashes.items()}


def collectives_of(
    closing: Closing,
    backward: Sequence[Issued],
    completing: Sequence[Sequence[Issued]],
) -> Iterator[Issued]:
    """Yield what a rank calls in its last backward and to complete sums, in order.

    Args:
        closing: how the backward is cut.
        backward: what it calls uncut.
        completing: what each program calls that completes sums.
    """
    left = iter(backward)
    for phase, begun in zip(closing.phases, closing.begun, strict=True):
        nodes = phase.graph_module.graph.nodes
        yield from islice(left, sum(is_collective(node) for node in nodes))
        for number in begun:
            yield completing[number][0]
    for number, calls in enumerate(completing):
        yield from calls[1:] if number in closing.halves else calls


def is_collective(node: fx.Node) -> bool:
    """Whether a call begins a collective."""
    return op_name(node).startswith(_COLLECTIVES) and op_name(node) != _WAIT


def in_step(mesh: Mesh, issued: Sequence[Sequence[Issued]]) -> None:
    """Check that the ranks of every group call the same collectives in one order.

    Args:
        mesh: says who is in which group.
        issued: the collectives of every rank, by rank.

    Raises:
        InvariantViolation: naming the first call in which two ranks differ.
    """
    for axis in mesh.names:
        names = {call.group for calls in issued for call in calls}
        for name in sorted(n for n in names if n.partition("/")[2] == axis):
            for ranks in mesh.groups(axis):
                rows = [[c for c in issued[r] if c.group == name] for r in ranks]
                _check_rows(name, ranks, rows)


def _check_rows(
    group: str, ranks: tuple[int, ...], rows: Sequence[Sequence[Issued]]
) -> None:
    for rank, row in zip(ranks, rows, strict=True):
        if len(row) != len(rows[0]):
            raise InvariantViolation(
                f"over {group} rank {ranks[0]} calls {len(rows[0])} collectives, rank "
                f"{rank} {len(row)}"
            )
    for position, calls in enumerate(zip(*rows, strict=True)):
        for rank, call in zip(ranks, calls, strict=True):
            if not _agree(calls[0], call):
                raise InvariantViolation(
                    f"call {position} over {group}: rank {ranks[0]} calls {calls[0]}, "
                    f"rank {rank} calls {call}"
                )


def _agree(first: Issued, other: Issued) -> bool:
    if first.op != other.op or first.payload.dtype != other.payload.dtype:
        return False
    if "all_to_all" in first.op:  # its sizes are each rank's own
        return first.group == other.group
    return first.payload == other.payload and first.constants == other.constants


def _frozen(value: Any) -> object:
    return tuple(value) if isinstance(value, list) else value


def _key(node: fx.Node) -> str:
    return info(node).key if has_info(node) else node.name


def _where(node: fx.Node) -> str:
    if not has_info(node) or not info(node).source:
        return _key(node)
    return f"{_key(node)} ({info(node).source})"
