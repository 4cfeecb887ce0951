"""A captured program as text, a node a line, and back; for reports that are sent.

Each line is a JSON object, so that a stranger's text is data: what it names are ops of
``aten`` and Partita, looked up one by one. Ops that take text, which may name a file,
and those of other libraries are refused unless the reader's rule table knows them.
"""

from __future__ import annotations

import base64
import json
import math
import operator
import re
import zlib
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import fx

from partita.compiler.errors import BadPlan
from partita.compiler.ir.program import (
    InputKind,
    InputRole,
    NodeInfo,
    OutputKind,
    OutputRole,
    Phase,
    Program,
    info,
    op_name,
    set_info,
    value_of,
)
from partita.compiler.ir.tensor_type import TensorType

_OP = re.compile(r"(aten|prims|partita)\.([a-z_]\w*)\.(\w+)", re.IGNORECASE)
_ANY_OP = re.compile(r"(\w+)\.([a-z_]\w*)\.(\w+)", re.IGNORECASE)
_NAMED: dict[type, str] = {
    torch.dtype: "dtype",
    torch.memory_format: "memory_format",
    torch.layout: "layout",
}
_MOST_CONSTANT_BYTES = 1 << 28


def print_program(program: Program) -> str:
    """Return the text of a program that is on no mesh yet."""
    lines: list[dict[str, Any]] = []
    for node, role in program.placeholders():
        own: dict[str, Any] = {"enters": role.kind, "name": role.name}
        if role.aliases:
            own["aliases"] = role.aliases
        if role.name in program.constants:
            own["value"] = _encoded(program.constants[role.name])
        lines.append(_fact(node) | own)
    for node in program.calls():
        args = [_written(arg) for arg in node.args]
        kwargs = {name: _written(arg) for name, arg in node.kwargs.items()}
        own = {"op": op_name(node), "args": args}
        lines.append(_fact(node) | own | ({"kwargs": kwargs} if kwargs else {}))
    for node, role in program.results():
        lines.append({"leaves": role.kind, "name": role.name, "value": _written(node)})
    lines.append({"draws": program.draws})
    return "".join(f"{json.dumps(line)}\n" for line in lines)


def _fact(node: fx.Node) -> dict[str, Any]:
    fact = info(node)
    found: dict[str, Any] = {
        "key": fact.key,
        "types": [t and str(t) for t in fact.types],
        "phase": fact.phase,
        "module": fact.module,
        "source": fact.source,
    }
    return {name: value for name, value in found.items() if value != ""}


def _written(value: Any) -> Any:
    """Return an argument as JSON; what JSON has not is an object of one key."""
    if isinstance(value, fx.Node):
        source = value_of(value)
        index = [source.index] if value.target is operator.getitem else []
        return {"of": [info(source.node).key, *index]}
    if isinstance(value, tuple | list):
        items = [_written(item) for item in cast("Sequence[Any]", value)]
        return {"tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.device):
        return {"device": "cpu"}
    for kind, word in _NAMED.items():
        if isinstance(value, kind):
            return {word: str(value).removeprefix("torch.")}
    raise BadPlan(f"an argument is a {type(value).__name__}, which has no text")


def _encoded(tensor: torch.Tensor) -> dict[str, str]:
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    raw: Any = flat.numpy().tobytes()
    text = base64.b64encode(zlib.compress(raw, 9)).decode()
    return {"type": str(TensorType(tuple(tensor.shape), tensor.dtype)), "zlib": text}


def parse_program(text: str, known_ops: frozenset[str]) -> Program:
    """Read what ``print_program`` wrote, from whomever it comes.

    Args:
        text: the program.
        known_ops: the ops that may take text as an argument.

    Raises:
        BadPlan: naming the line, what was found and what is wanted.
    """
    reader = _Reader(known_ops)
    for number, line in enumerate(text.splitlines(), 1):
        try:
            reader.read(json.loads(line))
        except BadPlan as error:
            raise BadPlan(f"line {number}: {error}") from None
        except RecursionError:
            raise BadPlan(f"line {number}: found too many nested brackets") from None
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise BadPlan(f"line {number}: {type(error).__name__}: {reason}") from None
    return reader.program()


class _Reader:
    def __init__(self, known_ops: frozenset[str]) -> None:
        self.known_ops = known_ops
        self.graph = fx.Graph()
        self.nodes: dict[str, fx.Node] = {}
        self.chosen: dict[tuple[str, int], fx.Node] = {}
        self.inputs: list[InputRole] = []
        self.outputs: list[OutputRole] = []
        self.results: list[fx.Node] = []
        self.constants: dict[str, torch.Tensor] = {}
        self.draws: tuple[str, ...] = ()

    def read(self, line: dict[str, Any]) -> None:
        """Add what one line says."""
        if "op" in line:
            self._call(line)
        elif "enters" in line:
            self._placeholder(line)
        elif "leaves" in line:
            self.outputs.append(OutputRole(OutputKind(line["leaves"]), line["name"]))
            self.results.append(self._read(line["value"]))
        elif "draws" in line:
            self.draws = tuple(map(str, line["draws"]))
        else:
            raise BadPlan(f"found {sorted(line)}, wanted op, enters, leaves or draws")

    def program(self) -> Program:
        """Return the program of all lines."""
        self.graph.output(tuple(self.results))
        self.graph.lint()
        module = fx.GraphModule(torch.nn.Module(), self.graph)
        return Program(
            module,
            tuple(self.inputs),
            tuple(self.outputs),
            constants=self.constants,
            draws=self.draws,
        )

    def _placeholder(self, line: dict[str, Any]) -> None:
        if self.results or len(self.inputs) < len(self.nodes):
            raise BadPlan("what enters stands first")
        aliases = tuple(map(str, line.get("aliases", ())))
        role = InputRole(InputKind(line["enters"]), str(line["name"]), aliases)
        node = self.graph.placeholder(
            f"{role.kind.replace('-', '_')}_{len(self.inputs)}"
        )
        self.inputs.append(role)
        self._note(node, line)
        if "value" in line:
            self.constants[role.name] = _decoded(line["value"])

    def _call(self, line: dict[str, Any]) -> None:
        target = self._target(str(line["op"]))
        args = tuple(self._read(arg) for arg in line["args"])
        kwargs = {str(k): self._read(arg) for k, arg in line.get("kwargs", {}).items()}
        self._note(self.graph.call_function(target, args, kwargs), line)

    def _note(self, node: fx.Node, line: dict[str, Any]) -> None:
        key = str(line["key"])
        if key in self.nodes:
            raise BadPlan(f"found the key {key!r} twice")
        self.nodes[key] = node
        types = tuple(None if t is None else TensorType.parse(t) for t in line["types"])
        places = str(line.get("module", "")), str(line.get("source", ""))
        set_info(node, NodeInfo(key, Phase(line["phase"]), types, *places))

    def _target(self, name: str) -> Any:
        match = (_ANY_OP if name in self.known_ops else _OP).fullmatch(name)
        packet = (
            getattr(getattr(torch.ops, match[1]), match[2], None) if match else None
        )
        target = getattr(packet, match[3], None) if match else None
        if not isinstance(target, type(torch.ops.aten.add.Tensor)):
            raise BadPlan(
                f"found {name!r}, wanted an op like aten.mm.default; one of your own "
                "needs your rules, whose file defines it"
            )
        schema = getattr(target, "_schema", None)
        kinds = [str(argument.type) for argument in schema.arguments] if schema else []
        if any("str" in kind for kind in kinds) and name not in self.known_ops:
            raise BadPlan(f"found {name!r}, an op that takes text, which may be a file")
        return target

    def _read(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._read(item) for item in cast("list[Any]", value)]
        if not isinstance(value, dict):
            return value
        ((word, inner),) = cast("dict[str, Any]", value).items()
        match word:
            case "of":
                return self._value(*inner)
            case "tuple":
                return tuple(self._read(item) for item in inner)
            case "float":
                return float(inner)
            case "device":
                return torch.device("cpu")
            case _:
                found = getattr(torch, inner, None)
                kind = next((k for k, known in _NAMED.items() if known == word), None)
                if kind is None or not isinstance(found, kind):
                    raise BadPlan(f"found {word} {inner!r}, wanted e.g. dtype float32")
                return found

    def _value(self, key: str, index: int | None = None) -> fx.Node:
        node = self.nodes.get(key)
        if node is None:
            raise BadPlan(f"found {key!r}, wanted the key of a line above")
        if index is None:
            return node
        if (key, index) not in self.chosen:
            made = self.graph.call_function(operator.getitem, (node, int(index)))
            self.chosen[key, index] = made
        return self.chosen[key, index]


def _decoded(value: dict[str, str]) -> torch.Tensor:
    type_ = TensorType.parse(value["type"])
    if type_.num_bytes > _MOST_CONSTANT_BYTES:
        raise BadPlan(f"found a constant {type_}, wanted at most 256 MiB")
    raw = zlib.decompressobj().decompress(
        base64.b64decode(value["zlib"], validate=True), max(type_.num_bytes, 1)
    )
    if len(raw) != type_.num_bytes:
        raise BadPlan(f"found {len(raw)} bytes, wanted {type_.num_bytes} of {type_}")
    if not raw:
        return torch.empty(type_.shape, dtype=type_.dtype)
    flat = torch.frombuffer(bytearray(raw), dtype=type_.dtype)
    return flat.reshape(type_.shape).clone()
