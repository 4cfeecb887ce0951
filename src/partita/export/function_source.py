"""One rank's graph as the source of a Python function, for people and for torch.

Calls are written as they stand in the graph, module by module, each with the type of
the rank's shard and its placement behind; a boxing's collectives are those of
``torch.distributed``, with the reason in front. What is needed no longer is let go of
at the end of each module.
"""

from __future__ import annotations

import keyword
import math
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import fx

from partita.compiler.capture.schemas import makes_tensors
from partita.compiler.errors import BadOptions
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.program import InputKind, InputRole, has_info, info
from partita.compiler.plan.document import Boxing
from partita.compiler.plan.units import printable
from partita.runtime.collectives import is_collective, is_wait

_OPERATORS = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.eq: "==",
}
_RESERVED = frozenset(
    {"at", "aten", "device", "dist", "float", "groups", "len", "math", "torch"}
)
"""What lines of a function speak of, and what they call."""
_KNOWN = ("aten", "prims", "_c10d_functional", "partita")
"""Where ops come from that are there once torch, or Partita, is imported."""
_CONSTANTS = (torch.dtype, torch.memory_format, torch.layout)


def own_ops(local: LocalProgram) -> set[str]:
    """Return the names of Partita's own ops that a program calls."""
    targets = map(str, _targets(local))
    return {target for target in targets if target.startswith("partita.")}


def model_ops(local: LocalProgram) -> set[str]:
    """Return the names of ops that a program calls and others have to register."""
    return {
        str(target)
        for target in _targets(local)
        if getattr(target, "namespace", "aten") not in _KNOWN
    }


def _targets(local: LocalProgram) -> Iterator[object]:
    graphs = [local.graph_module.graph]
    graphs += [r.graph for r in _regions(local.graph_module).values()]
    return (node.target for graph in graphs for node in graph.nodes)


def _regions(module: fx.GraphModule) -> dict[str, fx.GraphModule]:
    return {
        name: region
        for name, region in module.named_children()
        if isinstance(region, fx.GraphModule)
    }


@dataclass(frozen=True)
class Functions:
    """Writes functions of one file.

    Attributes:
        boxings: of the plan, by key.
        calls: what stands for each of Partita's own ops.
        reserved: names of the file that a function's own must not hide.
    """

    boxings: Mapping[str, Boxing]
    calls: Mapping[str, str]
    reserved: frozenset[str]

    def write(self, name: str, local: LocalProgram) -> str:
        """Return the functions of a program, its fused regions first."""
        texts: list[str] = []
        regions: dict[str, str] = {}
        for called, region in _regions(local.graph_module).items():
            regions[called] = f"{name}_{called}"
            own = _Body(self, region.graph, {})
            texts.append("\n".join(own.lines(regions[called], ())))
        whole = _Body(self, local.graph_module.graph, regions)
        texts.append("\n".join(whole.lines(name, local.inputs)))
        return "\n\n\n".join(texts)


@dataclass
class _Body:
    """The lines of one function."""

    file: Functions
    graph: fx.Graph
    regions: Mapping[str, str]
    names: dict[fx.Node, str] = field(default_factory=dict[fx.Node, str])
    taken: set[str] = field(default_factory=set[str])
    dying: list[str] = field(default_factory=list[str])

    def lines(self, name: str, entering: Sequence[InputRole]) -> Iterator[str]:
        """Yield them; where the rank stands enters beside what ``entering`` names."""
        self.taken |= {*_RESERVED, *self.file.reserved, *self.file.calls.values()}
        placeholders = self.graph.find_nodes(op="placeholder")
        listed: list[str] = []
        for position, node in enumerate(placeholders):
            role = entering[position] if entering else None
            if role is not None and role.kind is InputKind.COORDINATE:
                self.names[node] = f"at[{role.name!r}]"
            else:
                self.names[node] = self._new(node.name if role is None else role.name)
                listed.append(f"{self.names[node]}, ")
        yield f"def {name}({''.join(listed)}*, groups, at, device):"
        last = self._last_uses()
        region, reason = "", ""
        for node in self.graph.nodes:
            if node.op == "placeholder":
                continue
            if node.op == "output":
                yield f"    return {self._text(node.args[0])}"
                return
            if (place := self._place(node)) and place != region:
                yield from self._released()
                yield f"    # {place}"
                region = place
            why = self._reason(node)
            if why and why != reason:
                yield f"    # {why}"
            reason = why
            yield from (f"    {line}" for line in self._statements(node))
            self.dying += [self.names[old] for old in last.get(node, ())]

    def _new(self, wish: str) -> str:
        plain = re.sub(r"\W", "_", wish, flags=re.ASCII) or "value"
        if plain[0].isdigit() or plain[0] == "_" or keyword.iskeyword(plain):
            plain = f"x{plain}"
        found, number = plain, 1
        while found in self.taken:
            number += 1
            found = f"{plain}_{number}"
        self.taken.add(found)
        return found

    def _last_uses(self) -> dict[fx.Node, list[fx.Node]]:
        """Return by node what nobody needs behind it; a wait keeps its collective."""
        found: dict[fx.Node, list[fx.Node]] = {}
        seen: set[fx.Node] = set()
        for node in reversed(self.graph.nodes):
            for used in node.all_input_nodes:
                root = _awaited(used)
                if root.op == "call_function" and root not in seen:
                    seen.add(root)
                    found.setdefault(node, []).append(root)
        return found

    def _released(self) -> Iterator[str]:
        if self.dying:
            yield f"    del {', '.join(dict.fromkeys(self.dying))}"
            self.dying.clear()

    def _place(self, node: fx.Node) -> str:
        """Return module, source and phase of what the model itself calls."""
        if not has_info(node) or self._boxing(node) is not None:
            return ""
        fact = info(node)
        where = f" ({fact.source})" if fact.source else ""
        return printable(f"{fact.module or 'the model'}{where}, {fact.phase}")

    def _boxing(self, node: fx.Node) -> Boxing | None:
        if not has_info(node):
            return None
        key = info(node).key
        whole = self.file.boxings.get(key)
        return whole or self.file.boxings.get(key.rpartition("/")[0])

    def _reason(self, node: fx.Node) -> str:
        boxing = self._boxing(node)
        if boxing is None:
            return ""
        steps = ", ".join(map(str, boxing.lowering))
        change = f"{boxing.source} -> {boxing.target}"
        return printable(f"{steps}: {boxing.ref} {change}, {boxing.why}")

    def _statements(self, node: fx.Node) -> Iterator[str]:
        if is_wait(node):
            self.names[node] = self.names[_awaited(node)]
            return
        self.names[node] = name = self._new(node.name)
        if is_collective(node):
            yield from self._collective(node, name)
            return
        yield f"{name} = {self._call(node)}{_type(node)}"

    def _collective(self, node: fx.Node, name: str) -> Iterator[str]:
        args = [self._text(arg) for arg in node.args]
        axis = str(node.args[-1]).rpartition("/")[2]
        x, group = args[0], f"groups[{axis!r}]"
        op = str(node.target).split(".")[1]
        if op in ("all_reduce", "all_reduce_", "reduce_scatter_tensor"):
            reduction = f"dist.ReduceOp.{str(node.args[1]).upper()}"
        else:
            reduction = ""
        match op:
            case "all_reduce":
                yield f"{name} = {x}.clone(memory_format=torch.contiguous_format)"
                yield f"dist.all_reduce({name}, {reduction}, group={group})"
            case "all_reduce_":
                yield f"{name} = {x}"
                yield f"dist.all_reduce({name}, {reduction}, group={group})"
            case "all_gather_into_tensor":
                yield f"{name} = {x}.new_empty(({args[1]} * len({x}), *{x}.shape[1:]))"
                yield (
                    f"dist.all_gather_into_tensor({name}, {x}.contiguous(), "
                    f"group={group})"
                )
            case "reduce_scatter_tensor":
                yield f"{name} = {x}.new_empty((len({x}) // {args[2]}, *{x}.shape[1:]))"
                yield (
                    f"dist.reduce_scatter_tensor({name}, {x}.contiguous(), "
                    f"{reduction}, group={group})"
                )
            case "all_to_all_single":
                total = sum(cast("list[int]", node.args[1]))
                yield f"{name} = {x}.new_empty(({total}, *{x}.shape[1:]))"
                yield (
                    f"dist.all_to_all_single({name}, {x}.contiguous(), {args[1]}, "
                    f"{args[2]}, group={group})"
                )
            case _:
                raise AssertionError(f"no source for collective {op}")

    def _call(self, node: fx.Node) -> str:
        if node.op == "call_module":
            args = "".join(f"{self._text(arg)}, " for arg in node.args)
            callee = self.regions[str(node.target)]
            return f"{callee}({args}groups=groups, at=at, device=device)"
        target = node.target
        if target is operator.getitem:
            source, index = node.args
            return f"{self._text(source)}[{index}]"
        if target in _OPERATORS:
            left, right = map(self._text, node.args)
            return f"{left} {_OPERATORS[cast(Any, target)]} {right}"
        kwargs = dict(node.kwargs)
        if makes_tensors(target):
            kwargs["device"] = torch.device("cpu")
        parts = [self._text(arg) for arg in node.args]
        parts += [f"{key}={self._text(value)}" for key, value in kwargs.items()]
        return f"{self._callee(str(target))}({', '.join(parts)})"

    def _callee(self, target: str) -> str:
        if target in self.file.calls:
            return self.file.calls[target]
        return target if target.startswith("aten.") else f"torch.ops.{target}"

    def _text(self, value: Any) -> str:
        """Return an argument as Python; the run's device stands for any other."""
        match value:
            case fx.Node():
                return self.names[value]
            case None | bool() | int() | str():
                return ascii(value)
            case float() if math.isfinite(value):
                return repr(value)
            case float():
                return f'float("{value}")'
            case tuple():
                items = cast("tuple[Any, ...]", value)
                inner = ", ".join(map(self._text, items))
                return f"({inner},)" if len(items) == 1 else f"({inner})"
            case list():
                items = cast("list[Any]", value)
                return f"[{', '.join(map(self._text, items))}]"
            case torch.device():
                return "device"
            case _ if isinstance(value, _CONSTANTS):
                return str(value)
            case _:
                raise BadOptions(
                    f"--to python: an argument is a {type(value).__name__}, which has "
                    "no source; want numbers, text, dtypes and tensors"
                )


def _awaited(node: fx.Node) -> fx.Node:
    """Return the collective that a wait is for, else the node itself."""
    while is_wait(node):
        (node,) = node.all_input_nodes
    return node


def _type(node: fx.Node) -> str:
    """Return the comment on what a call makes: the shards' types, the placements."""
    if not has_info(node) or not info(node).types:
        return ""
    fact = info(node)
    results = fact.signature.results if fact.signature else (None,) * len(fact.types)
    made = zip(fact.types, results, strict=True)
    texts = (f"{type_} {placement or ''}".strip() for type_, placement in made if type_)
    return f"  # {'; '.join(texts)}"
